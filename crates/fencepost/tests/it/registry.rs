//! The registry: everything that an interface needs to know about the ops.

use fencepost::{
    Code, loops,
    op::{self, OnRetry, Op, Visit},
    task,
};
use fencepost_testing::World;
use serde_json::{Value, json};
use std::collections::HashSet;

#[test]
fn every_example_is_a_request_of_its_op() {
    for op in op::registry() {
        op.decode(op.example).unwrap_or_else(|error| panic!("{}: {error}", op.name));
    }
}

/// `ON_RETRY` of an op fits the fields of its request.
#[test]
fn an_op_with_a_request_id_or_a_token_says_so() {
    for op in op::registry() {
        let schema = (op.request)().to_value();
        let has = |name: &str| schema["properties"].get(name).is_some();
        assert_eq!(op.on_retry == OnRetry::Reads, op.reads, "{}", op.name);
        if !op.reads {
            assert_eq!(op.on_retry == OnRetry::ByRequestId, has("request"), "{}", op.name);
        }
        if has("token") && !op.reads && !has("request") {
            assert_eq!(op.on_retry, OnRetry::UnderClaim, "{}", op.name);
        }
    }
}

#[test]
fn a_former_name_still_finds_its_op() {
    for (former, name) in [("run/doubt", "run/suspect"), ("admin/settle", "admin/expire")] {
        assert_eq!(op::find(former).unwrap().name, name);
    }
    let all: HashSet<&str> = op::registry().iter().map(|op| op.name).collect();
    assert!(op::registry().iter().filter_map(|op| op.formerly).all(|former| !all.contains(former)));
}

#[test]
fn every_op_is_listed() {
    let list = op::registry().into_iter().map(|op| {
        let access = format!("{:?}", op.access).to_lowercase();
        format!("{:<16} {access}{}", op.name, if op.reads { " reads" } else { "" })
    });
    insta::assert_snapshot!(list.collect::<Vec<_>>().join("\n"), @r#"
    task/add         agent
    task/plan        agent
    task/import      admin
    task/ready       reader reads
    task/claim       agent
    task/claim_many  agent
    task/progress    agent
    task/checkpoint  agent
    task/done        agent
    task/done_many   agent
    task/fail        agent
    task/show        reader reads
    task/list        reader reads
    task/why         reader reads
    task/wait        reader reads
    task/offer       agent
    task/assign      agent
    task/accept      agent
    task/reject      agent
    task/park        agent
    task/unpark      agent
    task/cancel      agent
    task/retry       agent
    task/reopen      agent
    task/edit        agent
    task/note        agent
    task/depend      agent
    task/undepend    agent
    board/list       reader reads
    board/show       reader reads
    loop/start       agent
    loop/status      reader reads
    loop/list        reader reads
    loop/next        agent
    loop/step        agent
    loop/guard       reader reads
    loop/verdict     agent
    loop/cancel      agent
    loop/restart     agent
    mail/push        agent
    mail/push_many   agent
    mail/claim       agent
    mail/take        agent
    mail/checkpoint  agent
    mail/done        agent
    mail/done_many   agent
    mail/fail        agent
    mail/release     agent
    mail/reset       agent
    mail/list        reader reads
    mail/show        reader reads
    mail/peek        reader reads
    mail/redrive     agent
    mail/discard     agent
    mail/pause       agent
    mail/resume      agent
    mail/configure   agent
    mail/stats       reader reads
    agent/join       agent
    agent/list       reader reads
    agent/leave      agent
    agent/recall     agent
    agent/pause      agent
    agent/resume     agent
    agent/poll       agent
    inbox/send       agent
    inbox/list       reader reads
    inbox/read       agent
    inbox/respond    agent
    inbox/delegate   agent
    channel/create   agent
    channel/list     reader reads
    channel/join     agent
    channel/leave    agent
    channel/post     agent
    channel/read     agent
    channel/unread   reader reads
    route/add        admin
    route/list       reader reads
    route/remove     admin
    route/deliver    admin
    route/unmatched  reader reads
    route/again      admin
    storm/tick       admin
    storm/due        reader reads
    storm/show       reader reads
    storm/why        reader reads
    storm/cause      reader reads
    storm/set        admin
    storm/breaker    admin
    storm/environment admin
    spend/set        admin
    spend/show       reader reads
    lock/claim       agent
    once/begin       agent
    once/finish      agent
    once/resolve     agent
    once/show        reader reads
    once/list        reader reads
    once/remove      admin
    claim/guard      reader reads
    claim/renew      agent
    claim/release    agent
    claim/list       reader reads
    claim/unclaim    admin
    run/list         reader reads
    run/renew        agent
    run/wait         agent
    run/suspect      agent
    run/settle       agent
    run/charge       agent
    run/lift         admin
    run/end          agent
    event/list       reader reads
    event/prune      admin
    key/add          admin
    key/list         admin reads
    key/revoke       admin
    admin/about      reader reads
    admin/check      admin reads
    admin/due        reader reads
    admin/expire     admin
    admin/prune      admin
    admin/restored   admin
    admin/set_clock  admin
    admin/export     admin reads
    admin/import     admin
    "#);
}

#[test]
fn a_name_is_a_noun_and_a_verb_and_is_used_once() {
    let mut seen = HashSet::new();
    for op in op::registry() {
        let (noun, verb) = op.name.split_once('/').expect(op.name);
        let plain =
            |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        assert!(plain(noun) && plain(verb), "{}", op.name);
        assert!(seen.insert(op.name), "{} is there twice", op.name);
        assert_eq!(op::find(op.name).unwrap().name, op.name);
    }
}

#[test]
fn every_op_says_what_it_does_and_refuses_what_it_does_not_know() {
    for op in op::registry() {
        let schema = (op.request)().to_value();
        let description =
            schema["description"].as_str().unwrap_or_else(|| panic!("{} has no doc comment", op.name));
        assert!(description.ends_with('.'), "{}: {description:?} is not a sentence", op.name);
        let open =
            objects(&schema).filter(|object| object["additionalProperties"] != Value::Bool(false)).count();
        assert_eq!(open, 0, "{} takes fields that it does not know: {schema:#}", op.name);
    }
}

/// Every part of a schema that describes fields.
fn objects(schema: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    let own = schema.get("properties").map(|_| schema);
    let parts = match schema {
        Value::Object(fields) => fields.values().collect::<Vec<_>>(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    Box::new(own.into_iter().chain(parts.into_iter().flat_map(objects)))
}

#[test]
fn durations_are_named_in_milliseconds() {
    for op in op::registry() {
        for schema in [(op.request)().to_value(), (op.reply)().to_value()] {
            for (name, field) in objects(&schema).flat_map(|object| object["properties"].as_object().unwrap())
            {
                let is_span = field.to_string().contains("/Millis");
                assert_eq!(is_span, name.ends_with("_ms"), "{}: {name} is {field}", op.name);
            }
        }
    }
}

/// A request with the required fields only.
pub fn least_request(schema: &Value) -> Value {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let field = |name: &Value| {
        let name = name.as_str().unwrap();
        let property = &schema["properties"][name];
        let value = match property["type"].as_str() {
            Some("integer") => json!(7),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            Some("object") => json!({}),
            Some(_) => json!("x"),
            // Any JSON.
            None if property["$ref"].is_null() => json!({}),
            None => {
                let one_of = property["$ref"].as_str().unwrap().trim_start_matches("#/$defs/");
                schema["$defs"][one_of]["enum"][0].clone()
            }
        };
        (name.to_owned(), value)
    };
    Value::Object(required.iter().map(field).collect())
}

#[test]
fn the_least_request_of_every_op_survives_the_wire() {
    struct RoundTrips(usize);
    impl Visit for RoundTrips {
        fn op<O: Op>(&mut self) {
            let least = least_request(&schemars::schema_for!(O).to_value());
            let once: O =
                op::decode(least.to_string()).unwrap_or_else(|e| panic!("{} {least}: {e}", O::NAME));
            let wire = serde_json::to_string(&once).unwrap();
            let twice: O = op::decode(&wire).unwrap_or_else(|e| panic!("{} {wire}: {e}", O::NAME));
            assert_eq!(serde_json::to_string(&twice).unwrap(), wire, "{}", O::NAME);
            self.0 += 1;
        }
    }
    let mut visited = RoundTrips(0);
    op::visit_all(&mut visited);
    assert_eq!(visited.0, op::registry().len());
}

/// Readers have no lock and no transaction, so an op that is marked as reading must not write.
#[tokio::test]
async fn ops_that_read_write_nothing() {
    let world = World::sqlite().await;
    world
        .story(
            "
        add one     -> auth-1
        claim run=r -> task/auth-1@1
        mail/push s payload=x -> id=1
        once/begin key=e command=x run=r -> claim.token=once/e@1
        channel/create general -> existing=false
    ",
        )
        .await;
    let story = loops::Story { id: "a".into(), title: "a".into(), ..loops::Story::default() };
    let start = loops::Start { id: "l".into(), stories: vec![story], ..loops::Start::default() };
    world.fleet.call(start).await.unwrap();
    for op in op::registry().iter().filter(|op| op.reads) {
        let request = match op.name {
            "task/show" | "task/why" => json!({ "task": "auth-1" }),
            "inbox/list" | "channel/unread" => json!({ "agent": "bob" }),
            "mail/show" => json!({ "message": 1 }),
            "mail/peek" => json!({ "mailbox": "s" }),
            "once/show" => json!({ "key": "e" }),
            "storm/why" => json!({ "channel": "general", "agent": "bob" }),
            "storm/cause" => json!({ "id": "task/auth-1" }),
            "board/show" => json!({ "board": "auth" }),
            "task/wait" => json!({ "tasks": ["auth-1"] }),
            "claim/guard" | "loop/guard" => json!({ "token": "task/auth-1@1" }),
            _ => json!({}),
        };
        op.call(&world.fleet, &request.to_string()).await.unwrap_or_else(|e| panic!("{}: {e}", op.name));
    }
}

/// A call in bytes has the same reply and the same refusals as any other.
#[tokio::test]
async fn calls_in_bytes_reply_as_typed_calls() {
    let world = World::sqlite().await;
    let (add, show) = (op::find("task/add").unwrap(), op::find("task/show").unwrap());
    add.serve(&world.fleet, br#"{"board":"auth","title":"one"}"#).await.unwrap();
    let served = show.serve(&world.fleet, br#"{"task":"auth-1"}"#).await.unwrap();
    let shown = world.fleet.call(task::Show { task: "auth-1".into() }).await.unwrap();
    assert_eq!(String::from_utf8(served.json).unwrap(), serde_json::to_string(&shown).unwrap());
    let refusal = async |json: &[u8]| show.serve(&world.fleet, json).await.unwrap_err().to_string();
    assert_eq!(refusal(br#"{"task":"auth-2"}"#).await, "not_found: there is no task `auth-2`");
    assert_eq!(refusal(b"[\"auth-1\"]").await, "invalid: the request does not fit: it is not a JSON object");
    for broken in [&b"{\"task\":\"auth-\xff\"}"[..], b"{\"task\":\"auth-1\"} {}", b"", b"{\"tusk\":1}"] {
        let error = show.serve(&world.fleet, broken).await.unwrap_err();
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
}

#[test]
fn an_unknown_op_names_its_neighbours() {
    let hint = |name| op::find(name).unwrap_err().hint_text().unwrap().to_owned();
    insta::assert_snapshot!(hint("lock/dance"), @r#"
    there are lock/claim
    "#);
    assert!(hint("dance").contains("task/claim"));
}
