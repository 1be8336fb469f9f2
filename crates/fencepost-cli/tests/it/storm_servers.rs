//! Wake-ups with real servers: killed ones, ones whose environments differ, and their log.

use crate::{
    on_both,
    sealed::{Sealed, eventually},
    serve::Served,
};
use fencepost::{Fleet, Millis, agent, channel, run, storm};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Budgets and the breaker of this environment stay as they are for a day.
const FOR_A_DAY: [(&str, &str); 5] = [
    ("AUTO_UNREAD_MAX_TRIGGERS_PER_WINDOW", "2"),
    ("AUTO_UNREAD_WINDOW_MS", "86400000"),
    ("AUTO_UNREAD_MIN_INTERVAL_MS", "0"),
    ("AUTO_UNREAD_BREAKER_BACKLOG_THRESHOLD", "4"),
    ("AUTO_UNREAD_BREAKER_COOLDOWN_MS", "86400000"),
];

fn server(sealed: &Sealed, variables: &[(&str, &str)]) -> Served {
    Served::start_with(sealed, &["--tick", "20ms"], variables)
}

fn call(sealed: &Sealed, op: &str, request: Value) -> Value {
    serde_json::from_str(&sealed.ok(&["call", op, &request.to_string()])).expect("JSON")
}

/// Ann, bob and eve are members of the channel.
fn members(sealed: &Sealed, channel: &str) {
    call(sealed, "channel/create", json!({ "channel": channel }));
    for agent in ["ann", "bob", "eve"] {
        call(sealed, "agent/join", json!({ "agent": agent }));
        call(sealed, "channel/join", json!({ "channel": channel, "agent": agent }));
    }
    // However slow the machine is, they are online.
    sealed.sql("update agent set heard_until = 9000000000000, strands_at = 9000000000000, wakes_until = 9000000000000");
}

fn post(sealed: &Sealed, channel: &str) {
    call(sealed, "channel/post", json!({ "channel": channel, "body": "hello", "author": "ann" }));
}

fn count(sealed: &Sealed, name: &str) -> i64 {
    call(sealed, "storm/show", json!({}))["counts"][name].as_i64().expect("a count")
}

/// Takes an agent's wake-up, posts within its run, so that the post has a cause, and settles it.
async fn answer(fleet: &Fleet, agent: &str, run: &str) {
    let poll = agent::Poll {
        agent: agent.into(),
        run: run.into(),
        accept: Some(vec![agent::Type::UnreadWakeup]),
        ttl_ms: Some(Millis::minutes(60)),
        ..Default::default()
    };
    assert!(fleet.call(poll).await.expect("an answer").trigger.is_some(), "{agent} was woken");
    let post = channel::Post {
        channel: "general".into(),
        body: "indeed".into(),
        author: Some(agent.into()),
        ..Default::default()
    };
    fleet.in_run(run).call(post).await.expect("posted");
    fleet.call(run::Settle { run: run.into(), ..Default::default() }).await.expect("settled");
}

/// Everything that the scheduler decides by.
fn state(sealed: &Sealed) -> Value {
    let why = |agent: &str| {
        let mut why = call(sealed, "storm/why", json!({ "channel": "general", "agent": agent }));
        // It says how long until then.
        why["explanation"].take();
        why
    };
    json!({
        "shown": call(sealed, "storm/show", json!({})),
        "bob": why("bob"),
        "eve": why("eve"),
        "cause": call(sealed, "storm/cause", json!({ "id": "post/general/2" })),
    })
}

fn findings(sealed: &Sealed) -> Vec<Value> {
    let said = sealed.fence(&["--json", "doctor"]);
    assert_eq!(said.code, 0, "warnings are no problems: {said:?}");
    let found: Vec<Value> = serde_json::from_str(&said.out).expect("a list");
    let names = ["alarm", "breaker", "wake-ups"];
    found.into_iter().filter(|found| names.iter().any(|name| found["name"] == *name)).collect()
}

on_both! {
    without a server:

    /// Budgets, the breaker and causes are rows: a server that starts after all were killed decides as they would have.
    fn killing_every_server_changes_no_budget_breaker_or_cause(sealed: Sealed) {
        sealed.ok(&["init"]);
        members(&sealed, "general");
        let servers = [server(&sealed, &FOR_A_DAY), server(&sealed, &FOR_A_DAY)];
        let scheduled = |n: i64| eventually(&format!("{n} wake-ups"), || (count(&sealed, "scheduled") == n).then_some(()));
        post(&sealed, "general");
        scheduled(2);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let fleet = Fleet::open(&sealed.url()).await.expect("the fleet");
            answer(&fleet, "bob", "b1").await;
        });
        // Ann is woken by bob. Eve's first wake-up still waits.
        scheduled(3);
        post(&sealed, "general");
        // Bob again, now for the last time in this window; with ann and eve he is below the threshold.
        scheduled(4);
        runtime.block_on(async {
            let fleet = Fleet::open(&sealed.url()).await.expect("the fleet");
            answer(&fleet, "bob", "b2").await;
        });
        post(&sealed, "general");
        eventually("bob has no budget", || (count(&sealed, "suppressed_budget") >= 1).then_some(()));
        members(&sealed, "other");
        post(&sealed, "other");
        let is_open = || call(&sealed, "storm/show", json!({}))["breaker"]["open"] == true;
        eventually("the breaker opens", || is_open().then_some(()));
        eventually("nothing is due", || (call(&sealed, "storm/due", json!({}))["due"] == false).then_some(()));

        let before = state(&sealed);
        assert_eq!(before["shown"]["breaker"]["open"], true, "{before:#}");
        assert_eq!((&before["bob"]["state"], &before["bob"]["why"]), (&json!("suppressed"), &json!("budget")), "{before:#}");
        assert!(before["cause"].to_string().contains("b1"), "the run that caused it: {before:#}");
        for mut server in servers {
            server.signal(Signal::KILL);
            server.wait();
        }
        assert_eq!(state(&sealed), before);
        let servers = [server(&sealed, &FOR_A_DAY), server(&sealed, &FOR_A_DAY)];
        assert_eq!(state(&sealed), before);
        // They go on under the same limits.
        let (breaker, budget) = (count(&sealed, "suppressed_breaker"), count(&sealed, "suppressed_budget"));
        call(&sealed, "channel/create", json!({ "channel": "third" }));
        call(&sealed, "channel/join", json!({ "channel": "third", "agent": "bob" }));
        post(&sealed, "third");
        eventually("the breaker is still open", || (count(&sealed, "suppressed_breaker") == breaker + 1).then_some(()));
        call(&sealed, "storm/breaker", json!({ "state": "close" }));
        sealed.sql("update reader set wake_at = 1 where agent = 'bob' and channel = 'general'");
        eventually("bob still has no budget", || (count(&sealed, "suppressed_budget") > budget).then_some(()));
        drop(servers);
    }

    /// The last server that starts sets the values, and `doctor` names the other.
    fn servers_whose_environments_differ_are_named(sealed: Sealed) {
        sealed.ok(&["init"]);
        assert_eq!(findings(&sealed), Vec::<Value>::new());
        let first = server(&sealed, &[("AUTO_UNREAD_WINDOW_MS", "60000"), ("AUTO_UNREAD_ENABLED", "on")]);
        let second = server(&sealed, &[("AUTO_UNREAD_WINDOW_MS", "120000")]);
        let shown = call(&sealed, "storm/show", json!({}));
        let window = shown["settings"].as_array().expect("a list").iter().find(|setting| setting["name"] == "window_ms");
        assert_eq!(window.expect("it")["value"], 120_000);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let port = first.address.rsplit_once(':').expect("a port").1;
        let found = findings(&sealed);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0]["level"], "warning");
        assert_eq!(found[0]["message"], format!("server {host}:{port} has AUTO_UNREAD_WINDOW_MS=60000, the fleet 120000"));
        // A server that is killed is named until the fleet forgets it; one that stops is forgotten at once.
        let log = first.log();
        assert!(log.contains("AUTO_UNREAD_WINDOW_MS"), "a change of the fleet's settings is logged: {log}");
        assert_eq!(findings(&sealed), Vec::<Value>::new());
        drop(second);
    }

    fn an_open_breaker_and_an_alarm_are_warnings(sealed: Sealed) {
        sealed.ok(&["init"]);
        members(&sealed, "general");
        sealed.ok(&["add", "one", "--board", "auth"]);
        sealed.sql("update task set updated_at = 1");
        call(&sealed, "storm/breaker", json!({ "state": "open" }));
        call(&sealed, "storm/tick", json!({}));
        let found = findings(&sealed);
        let shown: Vec<_> = found.iter().map(|found| (found["name"].as_str(), found["level"].as_str())).collect();
        assert_eq!(shown, [(Some("alarm"), Some("warning")), (Some("breaker"), Some("warning"))], "{found:#?}");
        let message = found[0]["message"].as_str().expect("a text");
        assert!(
            message.ends_with("task/auth-1 is ready and agent `ann` is online, but nothing was picked up for 5m"),
            "{message}"
        );
        assert_eq!(
            found[1]["message"],
            "it is open until somebody closes it: no new wake-ups; 0 are pending or running"
        );
        sealed.ok(&["claim", "auth-1"]);
        call(&sealed, "storm/tick", json!({}));
        call(&sealed, "storm/breaker", json!({ "state": "close" }));
        assert_eq!(findings(&sealed), Vec::<Value>::new());
    }

    /// Each tick that did something is one line of the log. A breaker that opens is a warning.
    fn ticks_are_logged(sealed: Sealed) {
        sealed.ok(&["init"]);
        members(&sealed, "general");
        let server = server(&sealed, &[("AUTO_UNREAD_BREAKER_BACKLOG_THRESHOLD", "1")]);
        post(&sealed, "general");
        eventually("one is woken", || (count(&sealed, "suppressed_breaker") >= 1).then_some(()));
        let log = server.log();
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let ticks = lines.iter().filter(|line| line["target"] == "fence::storm" && !line["pending_jobs"].is_null());
        let wanted = json!([1, 1, 0, 1, 0, true, 0]);
        let fields = ["scheduled", "pending_jobs", "suppressed_budget", "suppressed_breaker", "suppressed_cause", "breaker_open", "reclaimed"];
        let shown: Vec<Value> = ticks.map(|line| fields.map(|field| line[field].clone()).to_vec().into()).collect();
        assert!(shown.contains(&wanted), "{log}");
        let warned = lines.iter().any(|line| line["level"] == "WARN" && line.to_string().contains("the breaker opened"));
        assert!(warned, "{log}");
    }
}

#[test]
fn a_wrong_variable_stops_the_server_before_it_listens() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let said = sealed.sh("AUTO_UNREAD_WINDOW_MS=5m fence serve --listen 127.0.0.1:0");
    insta::assert_snapshot!(format!("{}{}\n(exit {})", said.out, said.err, said.code), @r"
    error: AUTO_UNREAD_WINDOW_MS: `window_ms` is `5m`, not a number
    hint: correct it, or unset AUTO_UNREAD_WINDOW_MS: the fleet then keeps its value
    (exit 1)
    ");
    let shown: storm::show::Shown = serde_json::from_str(&sealed.ok(&["call", "storm/show"])).expect("JSON");
    assert!(shown.settings.iter().all(|setting| setting.source == "default"), "nothing was set");
}
