//! Invalid input: the right code, a message that names the field, and nothing written.

use fencepost::{Millis, op, task};
use fencepost_testing::{World, on_both};
use serde_json::{Value, json};

/// Creates some of everything, and returns what is stored.
async fn stage(world: &World) -> (Vec<String>, Value) {
    world
        .story(
            "
        add one                          -> auth-1
        add two offer=bob                -> auth-2
        add three                        -> auth-3
        claim auth-3 run=r ttl_ms=600000 -> task/auth-3@1
    ",
        )
        .await;
    (world.log().await, rows(world).await)
}

/// Every stored row outside the log.
async fn rows(world: &World) -> Value {
    let list = world.call("task/list", &json!({})).await.unwrap();
    let runs = world.call("run/list", &json!({ "all": true })).await.unwrap();
    let boards = world.call("board/list", &json!({})).await.unwrap();
    json!([list, runs, boards])
}

/// Calls each op, which must be refused and write nothing. Returns the messages.
async fn refuses(world: &World, requests: &[(&str, Value)]) -> String {
    let before = stage(world).await;
    let mut said = Vec::new();
    for (name, request) in requests {
        let request = request.as_str().map_or_else(|| request.to_string(), str::to_owned);
        let error = match op::find(name) {
            Ok(op) => op.call(&world.fleet, &request).await.map(|reply| format!("{reply}")),
            Err(error) => Err(error),
        };
        let error = error.expect_err(&format!("{name} {}", request.get(..200).unwrap_or(&request)));
        let field = error.field("field").and_then(Value::as_str).unwrap_or("-");
        said.push(format!("{name} {field}: {error}"));
    }
    assert_eq!((world.log().await, rows(world).await), before, "a refused op wrote something");
    said.join("\n")
}

on_both! {
    async fn texts_have_limits(world: World) {
        let said = refuses(&world, &[
            ("task/add", json!({ "title": "" })),
            ("task/add", json!({ "title": " \n" })),
            ("task/add", json!({ "title": "x".repeat(501) })),
            ("task/add", json!({ "title": "x", "body": "x".repeat(256 * 1024 + 1) })),
            ("task/add", json!({ "title": "x", "done_when": "x".repeat(16 * 1024 + 1) })),
            ("task/add", json!({ "title": "x", "origin": ["x".repeat(256 * 1024)] })),
            ("task/add", json!({ "title": "x", "source": "x".repeat(129) })),
            ("task/add", json!({ "title": "x", "key": "" })),
            ("task/add", json!({ "title": "x", "tags": vec!["t"; 33] })),
            ("task/add", json!({ "title": "x", "after": vec!["auth-1"; 1001] })),
            ("task/done", json!({ "token": "task/auth-3@1", "output": "x".repeat(1024 * 1024 + 1) })),
            ("task/fail", json!({ "token": "task/auth-3@1", "reason": "" })),
            ("task/progress", json!({ "token": "task/auth-3@1", "text": " " })),
            ("task/checkpoint", json!({ "token": "task/auth-3@1", "ordinal": 1, "phase": "" })),
            ("task/checkpoint", json!({ "token": "task/auth-3@1", "ordinal": 1, "phase": "x", "data": "x".repeat(256 * 1024) })),
            ("task/note", json!({ "task": "auth-1", "text": "x".repeat(16 * 1024 + 1) })),
            ("task/park", json!({ "task": "auth-1", "reason": "" })),
            ("task/edit", json!({ "task": "auth-1", "title": "" })),
            ("claim/release", json!({ "token": "task/auth-3@1", "note": "x".repeat(16 * 1024 + 1) })),
            ("task/add", json!({ "title": "x", "request": "" })),
            ("task/add", json!({ "title": "x", "request": "x".repeat(129) })),
        ]).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(said, @r#"
            task/add title: invalid: `title` is empty
            task/add title: invalid: `title` is empty
            task/add title: too_large: `title` has 501 bytes; at most 500 are allowed
            task/add body: too_large: `body` has 262145 bytes; at most 262144 are allowed
            task/add done_when: too_large: `done_when` has 16385 bytes; at most 16384 are allowed
            task/add origin: too_large: `origin` has 262148 bytes; at most 262144 are allowed
            task/add source: too_large: `source` has 129 bytes; at most 128 are allowed
            task/add key: invalid: `key` is empty
            task/add tags: invalid: `tags` has 33 tags; at most 32 are allowed
            task/add after: invalid: `after` names 1001 tasks; at most 1000 are allowed
            task/done output: too_large: `output` has 1048577 bytes; at most 1048576 are allowed
            task/fail reason: invalid: `reason` is empty
            task/progress text: invalid: `text` is empty
            task/checkpoint phase: invalid: `phase` is empty
            task/checkpoint data: too_large: `data` has 262146 bytes; at most 262144 are allowed
            task/note text: too_large: `text` has 16385 bytes; at most 16384 are allowed
            task/park reason: invalid: `reason` is empty
            task/edit title: invalid: `title` is empty
            claim/release note: too_large: `note` has 16385 bytes; at most 16384 are allowed
            task/add request: invalid: `request` is empty
            task/add request: too_large: `request` has 129 bytes; at most 128 are allowed
            "#);
        }
    }

    async fn names_ids_and_tokens_are_well_formed(world: World) {
        let said = refuses(&world, &[
            ("task/add", json!({ "title": "x", "board": "" })),
            ("task/add", json!({ "title": "x", "board": "a b" })),
            ("task/add", json!({ "title": "x", "board": "-a" })),
            ("task/add", json!({ "title": "x", "board": "x".repeat(129) })),
            ("task/add", json!({ "title": "x", "to": "bob!" })),
            ("task/add", json!({ "title": "x", "offer": "" })),
            ("task/add", json!({ "title": "x", "to": "bob", "offer": "eve" })),
            ("task/add", json!({ "title": "x", "tags": ["a/b"] })),
            ("task/add", json!({ "title": "x", "after": ["auth"] })),
            ("task/claim", json!({ "run": "" })),
            ("task/claim", json!({ "run": "a b" })),
            ("task/claim", json!({ "run": "x", "agent": "é" })),
            ("task/claim", json!({ "run": "x", "board": "/" })),
            ("task/claim", json!({ "run": "x", "tag": "" })),
            ("task/claim", json!({ "run": "x", "task": "auth-0" })),
            ("task/claim", json!({ "run": "x", "task": "auth-99" })),
            ("task/claim", json!({ "run": "x", "task": "auth-1", "tag": "y" })),
            ("task/show", json!({ "task": "auth-01" })),
            ("task/show", json!({ "task": "auth-99999999999999999999" })),
            ("task/show", json!({ "task": format!("{}\n-1", "x".repeat(99)) })),
            ("task/done", json!({ "token": "" })),
            ("task/done", json!({ "token": "auth-3" })),
            ("task/done", json!({ "token": "task/auth-3@" })),
            ("task/done", json!({ "token": "task/auth-3@0" })),
            ("task/done", json!({ "token": "lock/deploy@1" })),
            ("claim/guard", json!({ "token": "mail/1@1" })),
            ("claim/unclaim", json!({ "resource": "auth-3" })),
            ("lock/claim", json!({ "name": "", "run": "x" })),
            ("run/end", json!({ "run": "a b" })),
            ("task/dance", json!({})),
            ("dance", json!({})),
        ]).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(said, @r#"
            task/add board: invalid: `board` is empty
            task/add board: invalid: `board` has a ' ': letters, digits and any of `._-` are allowed
            task/add board: invalid: `board` does not start with a letter or a digit
            task/add board: invalid: `board` is longer than 128 characters
            task/add to: invalid: `to` has a '!': letters, digits and any of `._-` are allowed
            task/add offer: invalid: `offer` is empty
            task/add offer: invalid: `offer` and `to` cannot both be given: assign it or offer it
            task/add tags: invalid: `tags` has a '/': letters, digits and any of `._-` are allowed
            task/add after: invalid: `auth` is not a task id such as `auth-3`
            task/claim run: invalid: `run` is empty
            task/claim run: invalid: `run` has a ' ': letters, digits and any of `._-:/` are allowed
            task/claim agent: invalid: `agent` does not start with a letter or a digit
            task/claim board: invalid: `board` does not start with a letter or a digit
            task/claim tag: invalid: `tag` is empty
            task/claim task: invalid: `auth-0` is not a task id such as `auth-3`
            task/claim -: not_found: there is no task `auth-99`
            task/claim task: invalid: `task` names one task: leave out `board` and `tag`
            task/show task: invalid: `auth-01` is not a task id such as `auth-3`
            task/show task: invalid: `auth-99999999999999999999` is not a task id such as `auth-3`
            task/show task: invalid: `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…` is not a task id such as `auth-3`
            task/done token: invalid: `` is not a claim token such as `task/auth-3@42`
            task/done token: invalid: `auth-3` is not a claim token such as `task/auth-3@42`
            task/done token: invalid: `task/auth-3@` is not a claim token such as `task/auth-3@42`
            task/done token: invalid: `task/auth-3@0` is not a claim token such as `task/auth-3@42`
            task/done token: invalid: `lock/deploy` is not a task
            claim/guard token: invalid: `mail/1@1` is not a claim token such as `task/auth-3@42`
            claim/unclaim resource: invalid: `auth-3` is not a resource such as `task/auth-3` or `lock/deploy`
            lock/claim name: invalid: `name` is empty
            run/end run: invalid: `run` has a ' ': letters, digits and any of `._-:/` are allowed
            task/dance -: not_found: there is no op `task/dance`
            dance -: not_found: there is no op `dance`
            "#);
        }
    }

    async fn numbers_and_durations_are_within_their_limits(world: World) {
        let year = 366_i64 * 86_400_000;
        let said = refuses(&world, &[
            ("task/add", json!({ "title": "x", "priority": 101 })),
            ("task/add", json!({ "title": "x", "priority": -1 })),
            ("task/add", json!({ "title": "x", "max_attempts": 0 })),
            ("task/add", json!({ "title": "x", "max_attempts": 1001 })),
            ("task/edit", json!({ "task": "auth-1", "priority": 101 })),
            ("task/edit", json!({ "task": "auth-1", "max_attempts": 0 })),
            ("task/claim", json!({ "run": "x", "ttl_ms": -1 })),
            ("task/claim", json!({ "run": "x", "ttl_ms": 0 })),
            ("task/claim", json!({ "run": "x", "ttl_ms": 999 })),
            ("task/claim", json!({ "run": "x", "ttl_ms": year })),
            ("task/claim", json!({ "run": "x", "ttl_ms": i64::MAX })),
            ("task/claim", json!({ "run": "x", "max_ms": i64::MIN })),
            ("task/claim", json!({ "run": "r", "ttl_ms": i64::MAX })),
            ("lock/claim", json!({ "name": "l", "run": "x", "ttl_ms": -5 })),
            ("lock/claim", json!({ "name": "l", "run": "x", "max_ms": i64::MAX })),
            ("claim/renew", json!({ "token": "task/auth-3@1", "ttl_ms": i64::MAX })),
            ("run/renew", json!({ "run": "r", "ttl_ms": -1 })),
            ("task/fail", json!({ "token": "task/auth-3@1", "reason": "x", "retry": true, "delay_ms": -1 })),
            ("task/fail", json!({ "token": "task/auth-3@1", "reason": "x", "retry": true, "delay_ms": year })),
            ("task/claim_many", json!({ "run": "x", "count": 0 })),
            ("task/checkpoint", json!({ "token": "task/auth-3@1", "ordinal": -1, "phase": "x" })),
            ("task/list", json!({ "limit": 0 })),
            ("task/ready", json!({ "limit": 1001 })),
            ("event/list", json!({ "limit": -1 })),
            ("event/prune", json!({ "older_than_ms": -1 })),
            ("admin/prune", json!({ "older_than_ms": 0 })),
        ]).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(said, @r#"
            task/add priority: invalid: `priority` is 101; it must be between 0 and 100
            task/add priority: invalid: `priority` is -1; it must be between 0 and 100
            task/add max_attempts: invalid: `max_attempts` is 0; it must be between 1 and 1000
            task/add max_attempts: invalid: `max_attempts` is 1001; it must be between 1 and 1000
            task/edit priority: invalid: `priority` is 101; it must be between 0 and 100
            task/edit max_attempts: invalid: `max_attempts` is 0; it must be between 1 and 1000
            task/claim ttl_ms: invalid: `ttl_ms` is -1 ms; it must be between 1s and 30d
            task/claim ttl_ms: invalid: `ttl_ms` is 0 ms; it must be between 1s and 30d
            task/claim ttl_ms: invalid: `ttl_ms` is 999 ms; it must be between 1s and 30d
            task/claim ttl_ms: invalid: `ttl_ms` is 31622400000 ms; it must be between 1s and 30d
            task/claim ttl_ms: invalid: `ttl_ms` is 9223372036854775807 ms; it must be between 1s and 30d
            task/claim max_ms: invalid: `max_ms` is -9223372036854775808 ms; it must be between 1s and 30d
            task/claim ttl_ms: invalid: `ttl_ms` is 9223372036854775807 ms; it must be between 1s and 30d
            lock/claim ttl_ms: invalid: `ttl_ms` is -5 ms; it must be between 1s and 30d
            lock/claim max_ms: invalid: `max_ms` is 9223372036854775807 ms; it must be between 1s and 30d
            claim/renew ttl_ms: invalid: `ttl_ms` is 9223372036854775807 ms; it must be between 1s and 30d
            run/renew ttl_ms: invalid: `ttl_ms` is -1 ms; it must be between 1s and 30d
            task/fail delay_ms: invalid: `delay_ms` is -1 ms; it must be between 0s and 30d
            task/fail delay_ms: invalid: `delay_ms` is 31622400000 ms; it must be between 0s and 30d
            task/claim_many count: invalid: `count` is 0; it must be between 1 and 1000
            task/checkpoint ordinal: invalid: `ordinal` is -1; it must be between 1 and 9223372036854775807
            task/list limit: invalid: `limit` is 0; it must be between 1 and 1000
            task/ready limit: invalid: `limit` is 1001; it must be between 1 and 1000
            event/list limit: invalid: `limit` is -1; it must be between 1 and 1000
            event/prune older_than_ms: invalid: `older_than_ms` is -1 ms; it must be between 0s and 12000d
            admin/prune older_than_ms: invalid: `older_than_ms` is 0 ms; it must be between 7d and 12000d
            "#);
        }
    }

    async fn requests_have_the_right_shape(world: World) {
        let said = refuses(&world, &[
            ("task/add", json!({ "title": "x", "titel": "y" })),
            ("task/add", json!({})),
            ("task/add", json!({ "title": 7 })),
            ("task/add", json!({ "title": null })),
            ("task/add", json!({ "title": "x", "priority": "high" })),
            ("task/add", json!({ "title": "x", "priority": 1.5 })),
            ("task/add", json!({ "title": "x", "priority": u64::MAX })),
            ("task/add", json!({ "title": "x", "tags": "a" })),
            ("task/add", json!({ "title": "x", "tags": ["a", 1] })),
            ("task/plan", json!({ "tasks": [{ "title": "x" }, { "title": "y", "nam": "z" }] })),
            ("task/plan", json!({ "tasks": [{ "title": "x" }, { "title": "y", "priority": 101 }] })),
            ("task/list", json!({ "status": "asleep" })),
            ("task/claim", json!({ "run": "x", "ttl_ms": "30s" })),
            ("task/show", Value::String("".into())),
            ("task/show", Value::String("[\"auth-1\"]".into())),
            ("task/show", Value::String("{\"task\":\"auth-1\"".into())),
            ("task/show", Value::String("{\"task\":\"auth-1\"} {}".into())),
            ("task/show", Value::String("{\"task\":\"auth-1\",\"task\":\"auth-2\"}".into())),
        ]).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(said, @r#"
            task/add titel: invalid: `titel`: unknown field `titel`, expected one of `board`, `title`, `body`, `done_when`, `kind`, `priority`, `tags`, `source`, `origin`, `creator`, `to`, `offer`, `after`, `max_attempts`, `key`, `request` at line 1 column 20
            task/add -: invalid: the request does not fit: missing field `title` at line 1 column 2
            task/add title: invalid: `title`: invalid type: integer `7`, expected a string at line 1 column 10
            task/add title: invalid: `title`: invalid type: null, expected a string at line 1 column 13
            task/add priority: invalid: `priority`: invalid type: string "high", expected i64 at line 1 column 30
            task/add priority: invalid: `priority`: invalid type: floating point `1.5`, expected i64 at line 1 column 27
            task/add priority: invalid: `priority`: invalid value: integer `18446744073709551615`, expected i64 at line 1 column 44
            task/add tags: invalid: `tags`: invalid type: string "a", expected a sequence at line 1 column 23
            task/add tags[1]: invalid: `tags[1]`: invalid type: integer `1`, expected a string at line 1 column 26
            task/plan tasks[1].nam: invalid: `tasks[1].nam`: unknown field `nam`, expected one of `name`, `title`, `body`, `done_when`, `kind`, `priority`, `tags`, `source`, `origin`, `creator`, `to`, `offer`, `after`, `max_attempts`, `key` at line 1 column 42
            task/plan tasks[1].priority: invalid: `tasks[1].priority` is 101; it must be between 0 and 100
            task/list status: invalid: `status`: unknown variant `asleep`, expected one of `unassigned`, `offered`, `reviewing`, `pending`, `blocked`, `parked`, `delayed`, `in_progress`, `completed`, `failed`, `cancelled` at line 1 column 18
            task/claim ttl_ms: invalid: `ttl_ms`: invalid type: string "30s", expected i64 at line 1 column 25
            task/show -: invalid: the request does not fit: it is not a JSON object
            task/show -: invalid: the request does not fit: it is not a JSON object
            task/show -: invalid: the request does not fit: EOF while parsing an object at line 1 column 16
            task/show -: invalid: the request does not fit: trailing characters at line 1 column 19
            task/show -: invalid: the request does not fit: duplicate field `task` at line 1 column 23
            "#);
        }
    }

    /// PostgreSQL cannot store a NUL, and SQLite could: both refuse it, and name the field.
    async fn a_nul_is_refused_wherever_it_stands(world: World) {
        let said = refuses(&world, &[
            ("task/add", json!({ "title": "a\0b" })),
            ("task/add", json!({ "title": "x", "body": "\0" })),
            ("task/add", json!({ "title": "x", "done_when": "\0" })),
            ("task/add", json!({ "title": "x", "source": "\0" })),
            ("task/add", json!({ "title": "x", "key": "\0k" })),
            ("task/add", json!({ "title": "x", "board": "\0" })),
            ("task/add", json!({ "title": "x", "request": "\0" })),
            ("task/plan", json!({ "tasks": [{ "title": "x" }, { "title": "\0x" }] })),
            ("task/claim", json!({ "run": "\0" })),
            ("task/claim", json!({ "run": "x", "request": "\0" })),
            ("task/done", json!({ "token": "task/auth-3@1", "output": "\0" })),
            ("task/fail", json!({ "token": "task/auth-3@1", "reason": "\0x" })),
            ("task/note", json!({ "task": "auth-1", "text": "\0x" })),
            ("task/edit", json!({ "task": "auth-1", "title": "\0x" })),
            ("task/edit", json!({ "task": "auth-1", "request": "\0x", "title": "y" })),
            ("task/park", json!({ "task": "auth-1", "reason": "\0x" })),
            ("task/list", json!({ "board": "\0" })),
            ("task/list", json!({ "assignee": "\0" })),
            ("task/list", json!({ "tag": "\0" })),
            ("task/ready", json!({ "agent": "\0" })),
            ("event/list", json!({ "kind": "\0" })),
            ("event/list", json!({ "resource": "\0" })),
            ("claim/list", json!({ "run": "\0" })),
            ("run/renew", json!({ "run": "\0" })),
            ("lock/claim", json!({ "name": "\0", "run": "x" })),
        ]).await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(said, @r#"
            task/add title: invalid: `title` contains a NUL character
            task/add body: invalid: `body` contains a NUL character
            task/add done_when: invalid: `done_when` contains a NUL character
            task/add source: invalid: `source` contains a NUL character
            task/add key: invalid: `key` contains a NUL character
            task/add board: invalid: `board` does not start with a letter or a digit
            task/add request: invalid: `request` contains a NUL character
            task/plan tasks[1].title: invalid: `tasks[1].title` contains a NUL character
            task/claim run: invalid: `run` does not start with a letter or a digit
            task/claim request: invalid: `request` contains a NUL character
            task/done output: invalid: `output` contains a NUL character
            task/fail reason: invalid: `reason` contains a NUL character
            task/note text: invalid: `text` contains a NUL character
            task/edit title: invalid: `title` contains a NUL character
            task/edit request: invalid: `request` contains a NUL character
            task/park reason: invalid: `reason` contains a NUL character
            task/list board: invalid: `board` does not start with a letter or a digit
            task/list assignee: invalid: `assignee` does not start with a letter or a digit
            task/list tag: invalid: `tag` does not start with a letter or a digit
            task/ready agent: invalid: `agent` does not start with a letter or a digit
            event/list kind: invalid: `kind` contains a NUL character
            event/list resource: invalid: `resource` contains a NUL character
            claim/list run: invalid: `run` does not start with a letter or a digit
            run/renew run: invalid: `run` does not start with a letter or a digit
            lock/claim name: invalid: `name` does not start with a letter or a digit
            "#);
        }
    }

    /// If it were stored, a caller that claimed it could not read the reply.
    async fn json_that_cannot_be_read_is_refused_wherever_it_stands(world: World) {
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let bad = [
            r#""\ud83d""#.into(), r#"{"cut": ["\ude00"]}"#.into(), r#"{"\ud83dx": 1}"#.into(), "1e999".into(),
            "[-1e999]".into(), deep(101), deep(100_000),
        ];
        let places = [
            ("mail/push", "payload", r#"{"mailbox": "s", "payload": JSON}"#),
            ("mail/push_many", "messages[1].payload", r#"{"messages": [{"mailbox": "s"}, {"mailbox": "s", "payload": JSON}]}"#),
            ("mail/done", "outputs", r#"{"token": "message/1@1", "outputs": [1, JSON]}"#),
            ("mail/done_many", "outputs", r#"{"messages": [{"token": "message/1@1", "outputs": [JSON]}]}"#),
            ("mail/checkpoint", "data", r#"{"token": "message/1@1", "ordinal": 1, "phase": "p", "data": JSON}"#),
            ("task/checkpoint", "data", r#"{"token": "task/auth-3@1", "ordinal": 1, "phase": "p", "data": JSON}"#),
            ("task/add", "origin", r#"{"title": "t", "origin": JSON}"#),
            ("task/plan", "tasks[1].origin", r#"{"tasks": [{"title": "t"}, {"title": "t", "origin": JSON}]}"#),
            ("task/import", "origin", r#"{"tasks": [{"id": "a-1", "title": "t", "origin": JSON}]}"#),
            ("admin/import", "messages[0].content.data",
                r#"{"source": "x", "messages": [{"id": "1", "agent": "a", "content": {"text": "t", "source": "s", "data": JSON}}]}"#),
            ("inbox/send", "data", r#"{"agent": "a", "text": "t", "data": JSON}"#),
            ("route/deliver", "data", r#"{"source": "s", "delivery": "1", "text": "t", "data": JSON}"#),
            ("run/settle", "cost", r#"{"run": "r", "outcome": "done", "cost": JSON}"#),
        ];
        let before = stage(&world).await;
        for (name, field, request) in places {
            for json in &bad {
                let what = format!("{name} {}", json.get(..20).unwrap_or(json));
                let error = op::find(name).unwrap().call(&world.fleet, &request.replace("JSON", json)).await.expect_err(&what);
                assert_eq!(error.code(), fencepost::Code::Invalid, "{what}: {error}");
                // The message names the place in the text, or the field.
                let named = error.field("field").and_then(Value::as_str).unwrap_or(field);
                assert!(named.starts_with(field) || named.starts_with("tasks[0].origin"), "{what}: {error}");
            }
        }
        assert_eq!((world.log().await, rows(&world).await), before, "a refused op wrote something");
        let request = json!({ "mailbox": "s", "payload": serde_json::from_str::<Value>(&deep(100)).unwrap() });
        world.call("mail/push", &request).await.unwrap();
        let claimed = world.call("mail/claim", &json!({ "mailboxes": ["s"], "run": "r" })).await.unwrap();
        assert_eq!(claimed["claims"][0]["message"]["payload"], request["payload"]);
    }

    async fn texts_are_returned_unchanged(world: World) {
        let odd = "‘quotes’ \" ' \\ \t %_?1 $1 {\"k\":1} /*pg*/ -- ; \u{1F600} \u{202E} \u{FFFF} e\u{301}";
        let origin = json!({ "nul": "\0", "odd": odd, "big": i64::MAX, "float": 1e300, "deep": [[[{}]]] });
        let item = || task::plan::Item {
            title: odd.into(), body: Some(odd.into()), done_when: Some(odd.into()), source: Some("s ?1".into()),
            key: Some(odd.into()), origin: Some(origin.clone()), ..Default::default()
        };
        world.fleet.call(task::Plan { tasks: vec![item()], request: Some(odd.into()), ..Default::default() }).await.unwrap();
        let claim = task::Claim { run: "r".into(), ttl_ms: Some(Millis::minutes(1)), ..Default::default() };
        let claimed = world.fleet.call(claim).await.unwrap();
        assert_eq!((claimed.task.title.as_str(), claimed.task.body.as_deref()), (odd, Some(odd)));
        assert_eq!((claimed.task.origin, claimed.task.idempotency_key.as_deref()), (Some(origin.clone()), Some(odd)));
        let token = claimed.claim.token;
        world.fleet.call(task::Progress::new(&token, odd)).await.unwrap();
        world.fleet.call(task::SaveCheckpoint { token: token.clone(), ordinal: 1, phase: odd.get(..20).unwrap().into(), data: Some(origin.clone()) }).await.unwrap();
        let completion = task::done_many::Completion { token, output: Some(odd.into()) };
        world.fleet.call(task::DoneMany { tasks: vec![completion] }).await.unwrap();
        let shown = world.show("main-1").await;
        assert_eq!((shown.output.as_deref(), shown.progress[0].text.as_str()), (Some(odd), odd));
        assert_eq!(shown.checkpoint.unwrap().data.as_ref(), Some(&origin));
        let again = task::Plan { tasks: vec![item()], request: Some(odd.into()), ..Default::default() };
        assert_eq!(world.fleet.call(again).await.unwrap().tasks[0].id, "main-1");
    }

    /// The limits themselves are allowed.
    async fn values_at_the_limits_are_accepted(world: World) {
        let add = json!({
            "board": "b".repeat(128), "title": "x".repeat(500), "body": "x".repeat(256 * 1024), "priority": 100,
            "done_when": "x".repeat(16 * 1024), "max_attempts": 1000, "key": "k".repeat(128),
            "tags": (0..32).map(|n| format!("{n}{}", "t".repeat(120))).collect::<Vec<_>>(), "to": "a".repeat(128),
        });
        let id = world.call("task/add", &add).await.unwrap()["task"]["id"].as_str().unwrap().to_owned();
        let claim = json!({ "task": id, "run": "r".repeat(128), "agent": "a".repeat(128), "ttl_ms": 1000, "max_ms": 30_i64 * 86_400_000 });
        let claimed = world.call("task/claim", &claim).await.unwrap();
        let done = json!({ "token": claimed["claim"]["token"], "output": "x".repeat(1024 * 1024) });
        assert_eq!(world.call("task/done", &done).await.unwrap()["task"]["status"], "completed");
    }
}
