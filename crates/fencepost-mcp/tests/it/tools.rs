//! Each tool, and the run and the token that it acts under.

use crate::client::{Client, Local};
use fencepost::{agent, claim, inbox, task};
use fencepost_testing::{World, eventually, on_both};
use serde_json::json;

async fn client(world: &World) -> Client {
    Client::new(Local::new(world, "the-session")).await
}

on_both! {
    async fn a_claim_is_worked_on_and_ended(world: World) {
        for title in ["one", "two", "three"] {
            world.add(title).await;
        }
        let client = client(&world).await;
        assert_eq!(client.ok("look", json!({})).await["tasks"].as_array().expect("tasks").len(), 3);
        assert_eq!(client.refused("finish", json!({"how": "done"})).await, "not_found", "it holds nothing");
        let claimed = client.ok("claim", json!({"task": "task/auth-1"})).await;
        assert_eq!((&claimed["claim"]["token"], &claimed["claim"]["run"]), (&json!("task/auth-1@1"), &json!("the-session")));
        let mine = client.ok("look", json!({"what": "mine"})).await;
        assert_eq!((&mine["run"], &mine["claims"][0]["token"]), (&json!("the-session"), &json!("task/auth-1@1")));
        client.ok("report", json!({"text": "half"})).await;
        client.ok("report", json!({"phase": "built", "ordinal": 1, "data": {"at": "x"}})).await;
        assert_eq!(client.ok("report", json!({})).await["claim"]["token"], "task/auth-1@1");
        assert_eq!(client.ok("guard", json!({})).await["ok"], true);
        client.ok("finish", json!({"how": "done", "output": "see x"})).await;
        assert_eq!(world.show("auth-1").await.output.as_deref(), Some("see x"));
        assert_eq!(client.refused("guard", json!({"token": "task/auth-1@1"})).await, "already_finished");
        assert_eq!(client.refused("report", json!({"text": "late", "token": "task/auth-1@1"})).await, "already_finished");
        assert_eq!(client.refused("finish", json!({"how": "done"})).await, "lease_expired", "it holds nothing any more");

        client.ok("claim", json!({"task": "auth-2"})).await;
        client.ok("finish", json!({"how": "fail", "reason": "no", "retry": true})).await;
        assert_eq!(client.refused("claim", json!({"task": "auth-2"})).await, "not_ready");
        assert_eq!(client.ok("look", json!({"what": "why", "task": "auth-2"})).await["ready"], false);
        client.ok("claim", json!({})).await;
        client.ok("finish", json!({"how": "release", "note": "half way"})).await;
        let shown = client.ok("look", json!({"task": "auth-3"})).await;
        assert_eq!(shown["task"]["notes"][0]["from_others"]["text"], "half way", "{shown}");
    }

    async fn work_is_planned(world: World) {
        let client = client(&world).await;
        let added = client.ok("plan", json!({"title": "one", "body": "b", "board": "auth", "priority": 70, "tags": ["x"]})).await;
        assert_eq!((&added["task"]["id"], &added["task"]["tags"]), (&json!("auth-1"), &json!(["x"])));
        let second = client.ok("plan", json!({"title": "two", "board": "auth", "after": ["auth-1"], "done_when": "tests pass"})).await;
        assert_eq!((&second["task"]["waiting_on"], &second["task"]["from_others"]["done_when"]), (&json!(1), &json!("tests pass")));
        client.ok("plan", json!({"task": "auth-2", "note": "mind the gap"})).await;
        assert_eq!(world.show("auth-2").await.notes[0].text, "mind the gap");
        let listed = client.ok("look", json!({"what": "list", "board": "auth"})).await;
        assert_eq!(listed["tasks"].as_array().expect("tasks").len(), 2);
        assert_eq!(client.refused("claim", json!({"task": "auth-2"})).await, "not_ready");
    }

    async fn the_token_may_be_left_out_while_it_is_clear(world: World) {
        for title in ["one", "two"] {
            world.add(title).await;
        }
        let client = client(&world).await;
        client.ok("claim", json!({"task": "auth-1"})).await;
        client.ok("claim", json!({"task": "auth-2"})).await;
        let refused = client.call("finish", json!({"how": "done"})).await.0;
        assert_eq!(refused["error"]["tokens"], json!(["task/auth-1@1", "task/auth-2@1"]), "{refused}");
        assert_eq!(refused["error"]["code"], "invalid");
        client.ok("finish", json!({"how": "done", "token": "auth-2"})).await;
        client.ok("finish", json!({"how": "done"})).await;
        assert_eq!(world.show("auth-1").await.status.as_str(), "completed");
    }

    async fn a_claim_that_the_client_was_started_for_is_its_own(world: World) {
        for title in ["one", "two"] {
            world.add(title).await;
        }
        let token = world.claim("auth-1", "of-the-worker").await.expect("claimed");
        let client = Client::new(Local { claim: Some(token.clone()), ..Local::new(&world, "of-the-worker") }).await;
        assert_eq!(client.refused("poll", json!({})).await, "not_ready");
        client.ok("report", json!({"text": "on it"})).await;
        client.ok("finish", json!({"how": "done"})).await;
        // Repeated, it is the first reply; but not while the run holds something else.
        client.ok("finish", json!({"how": "done"})).await;
        world.claim("auth-2", "of-the-worker").await.expect("claimed");
        assert_eq!(client.refused("finish", json!({"how": "done"})).await, "lease_expired");
    }

    async fn subagents_have_runs_of_their_own(world: World) {
        for title in ["one", "two"] {
            world.add(title).await;
        }
        let client = client(&world).await;
        let first = client.ok("claim", json!({"run": "sub-1"})).await;
        let second = client.ok("claim", json!({"run": "sub-2"})).await;
        assert_ne!(first["claim"]["token"], second["claim"]["token"]);
        client.ok("finish", json!({"how": "done", "run": "sub-2"})).await;
        assert_eq!(client.ok("look", json!({"what": "mine", "run": "sub-1"})).await["claims"][0]["run"], "sub-1");
        assert_eq!(client.refused("finish", json!({"how": "done"})).await, "not_found", "the session holds nothing");
    }

    async fn a_repeated_call_is_done_once(world: World) {
        for title in ["one", "two", "three"] {
            world.add(title).await;
        }
        let claude = client(&world).await.with_meta(json!({"claudecode/toolUseId": "toolu_1"}));
        let first = claude.ok("claim", json!({})).await;
        assert_eq!(claude.ok("claim", json!({})).await["claim"]["token"], first["claim"]["token"]);
        claude.call("plan", json!({"title": "more"})).await;
        let added = world.fleet.call(task::List::default()).await.expect("a list").tasks.len();
        claude.call("plan", json!({"title": "more"})).await;
        assert_eq!(world.fleet.call(task::List::default()).await.expect("a list").tasks.len(), added);
        // Two sessions of Codex number their calls alike, and are two.
        let codex = |session: &str| json!({"callId": "call_1", "sessionId": session, "threadId": session, "x-codex-turn-metadata": {}});
        let one = client(&world).await.with_meta(codex("s-1"));
        let two = client(&world).await.with_meta(codex("s-2"));
        let (mine, theirs) = (one.ok("claim", json!({})).await, two.ok("claim", json!({})).await);
        assert_ne!(mine["claim"]["token"], theirs["claim"]["token"]);
        assert_eq!((&mine["claim"]["run"], &theirs["claim"]["run"]), (&json!("codex-s-1"), &json!("codex-s-2")));
    }

    async fn an_agent_polls_answers_and_settles(world: World) {
        for name in ["bob", "lead"] {
            world.join(name, agent::Role::Worker).await;
        }
        let bob = Client::new(Local { agent: Some("bob".into()), ..Local::new(&world, "s") }).await;
        assert!(bob.ok("poll", json!({})).await["trigger"].is_null());
        let send = inbox::Send { agent: "bob".into(), text: "please look".into(), ..inbox::Send::default() };
        world.fleet.call(send).await.expect("sent");
        let polled = bob.ok("poll", json!({"wait_seconds": 5})).await;
        let run = polled["trigger"]["run"].as_str().expect("a run").to_owned();
        assert_eq!(polled["trigger"]["messages"][0]["content"]["from_others"]["text"], "please look", "{polled}");
        let message = polled["trigger"]["claims"][0]["token"].as_str().expect("a token").to_owned();
        bob.ok("say", json!({"message": message, "text": "done", "run": run})).await;
        assert_eq!(bob.ok("settle", json!({"run": run})).await["run"]["name"], json!(run));

        world.fleet.call(task::Add { offer: Some("bob".into()), title: "yours?".into(), ..task::Add::default() }).await.expect("offered");
        let polled = bob.ok("poll", json!({})).await;
        assert_eq!(polled["trigger"]["type"], "task_offered", "{polled}");
        let run = polled["trigger"]["run"].as_str().expect("a run").to_owned();
        bob.ok("finish", json!({"how": "accept", "run": run})).await;
        bob.ok("settle", json!({"run": run, "outcome": "done"})).await;
        assert_eq!(world.show("main-1").await.assignee.as_deref(), Some("bob"));
        bob.ok("say", json!({"agent": "lead", "text": "I have it"})).await;

        // A client for no agent is told so.
        assert_eq!(client(&world).await.refused("poll", json!({})).await, "invalid");
    }

    async fn a_cancelled_call_claims_nothing(world: World) {
        let held = world.add("held").await;
        world.claim(&held, "another").await.expect("claimed");
        let client = client(&world).await;
        let waiting = client.try_call("claim", json!({"wait_seconds": 600}));
        let waits = eventually("it waits", async || world.fleet.stats().waiting > 0);
        // Dropping the request makes the client of rmcp cancel it.
        tokio::select! {
            answer = waiting => panic!("{answer:?}"),
            () = waits => {}
        }
        drop(client);
        eventually("it waits no more", async || world.fleet.stats().waiting == 0).await;
        let task = world.add("one").await;
        assert_eq!(world.fleet.call(claim::List::default()).await.expect("a list").claims.len(), 1);
        world.claim(&task, "another").await.expect("it is free");
    }
}
