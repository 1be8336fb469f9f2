//! `fence work` starts the real clients.

use super::{
    model::{Script, fence, shell},
    world::{World, seen},
};
use crate::{
    running::{Running, ask_at, counts, until},
    with_each_client,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::fs;

/// The last words of the prompts. Prompts also show titles and outputs of other tasks.
const IN_THE_SHELL: &str = "finish it in the shell";
const BY_A_TOOL: &str = "finish it by a tool";
const IS_KILLED: &str = "report, and wait";

/// Three rows of four tasks, each after all tasks of the row before.
fn plan() -> String {
    let task = |n: usize| {
        let after: Vec<String> = (0..12).filter(|m| m / 4 + 1 == n / 4).map(|m| format!("t{m}")).collect();
        let body = if n == 1 { IS_KILLED } else { [IN_THE_SHELL, BY_A_TOOL][n % 2] };
        json!({ "title": format!("task {n}"), "name": format!("t{n}"), "after": after, "body": body })
    };
    (0..12).map(|n| format!("{}\n", task(n))).collect()
}

/// The process of a client that works under this claim.
fn client_under(claim: &str, name: &str) -> Option<Pid> {
    let wanted = format!("FENCE_CLAIM={claim}");
    let works = |entry: &fs::DirEntry| {
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        comm.trim_end() == name
            && environment.split(|&b| b == 0).any(|variable| variable == wanted.as_bytes())
    };
    let found = fs::read_dir("/proc").expect("proc").flatten().find(works)?;
    Pid::from_raw(found.file_name().to_str()?.parse().ok()?)
}

with_each_client! {
    /// Four agents, twelve tasks that depend on each other, and one client is killed: each task is completed once.
    fn four_agents_complete_a_plan(client, program) {
        let by_tool = fence("finish", json!({ "how": "done", "output": "ok" }));
        let scripts: Vec<Script> = vec![
            (IS_KILLED, vec![shell("fence progress begun"), by_tool.clone().behind("begun")]),
            (BY_A_TOOL, vec![by_tool]),
            (IN_THE_SHELL, vec![shell("fence done --output ok")]),
        ];
        let world = World::set_up(client, program, scripts);
        fs::write(world.path("plan.jsonl"), plan()).expect("written");
        world.ok(&["add", "-f", "../plan.jsonl", "--board", "plan"]);
        let since = seen::now();
        let mut command = world.command("fence");
        command
            .env("ANTHROPIC_BASE_URL", world.model.url())
            .env("ANTHROPIC_API_KEY", "no-key")
            .env("DISABLE_TELEMETRY", "1")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        let worker = Running::start(&mut command, &["work", "--agents", "4", "--profile", client.name(), "--board", "plan", "--plain"]);
        world.model.reached("begun");
        let killed = client_under("task/plan-2@1", client.name()).expect("the client");
        kill_process(killed, Signal::KILL).expect("killed");
        world.model.open("begun");
        let state = || {
            let tasks = world.json(&["list", "--board", "plan"]);
            let tasks = tasks["tasks"].as_array().expect("a list").clone();
            tasks.iter().map(|task| task["status"].as_str().expect("a status").to_owned()).collect::<Vec<_>>()
        };
        until(&format!("all are completed: {}", world.model.summary()), || {
            let state = state();
            assert!(!state.contains(&"failed".to_owned()), "{state:?}: {} {}", worker.out(), world.model.summary());
            state.len() == 12 && state.iter().all(|status| status == "completed")
        });
        let seconds = since.elapsed().as_secs_f64();
        worker.send(Signal::TERM);
        let ended = worker.end();
        assert_eq!(ended.code, 0, "{ended:?}");
        let url = world.path("repo/.fence/fence.db").display().to_string();
        let counts = ask_at(&url, async |fleet| counts(&fleet).await);
        for n in 1..=12 {
            let of = |kind: &str| counts.get(&(kind.to_owned(), format!("task/plan-{n}"))).copied().unwrap_or(0);
            let claimed = if n == 2 { 2 } else { 1 };
            assert_eq!((of("task.completed"), of("task.claimed")), (1, claimed), "plan-{n}: {counts:?}");
        }
        assert_eq!(world.claims(), []);
        let runs = world.json(&["runs", "--all"])["runs"].as_array().expect("a list").clone();
        assert_eq!(runs.len(), 13, "no other run than those of the triggers: {runs:#?}");
        seen::say(&format!("{}: four agents completed twelve tasks in {seconds:.1} s, one client was killed", client.name()));
    }
}
