//! `claim --keep`: real shells, real keepers, killed for real.

use crate::{
    on_both,
    proxy::{Mode, Proxy},
    sealed::{Sealed, eventually},
};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Stdio},
    sync::mpsc,
    time::Duration,
};

/// A shell that leads its own session, and runs the given commands.
struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    output: mpsc::Receiver<String>,
}

impl Shell {
    fn start(sealed: &Sealed) -> Self {
        Self::with(sealed, &[])
    }

    fn with(sealed: &Sealed, variables: &[(&str, &str)]) -> Self {
        // Its commands come from standard input, so it is no shell for one command; `setsid` becomes it.
        let mut command = sealed.command("setsid");
        command.arg("bash").envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("its output"));
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|read| line.send(read))
        });
        Self { child, input, output: lines }
    }

    /// Runs a command line and returns its output.
    fn run(&mut self, line: &str) -> String {
        let input = self.input.as_mut().expect("an open shell");
        writeln!(input, "{line}\necho \"--over--\"").expect("it reads");
        let mut said: Vec<String> = Vec::new();
        loop {
            match self.output.recv_timeout(Duration::from_secs(120)) {
                Ok(over) if over == "--over--" => return said.join("\n"),
                Ok(line) => said.push(line),
                Err(e) => panic!("`{line}` does not come to an end ({e}): {said:?}"),
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

/// A shell that a failed test leaves behind would keep its keeper alive.
impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every keeper of this fleet, found by its open file below our directory.
fn keepers(sealed: &Sealed) -> Vec<String> {
    let below = std::fs::canonicalize(sealed.path()).unwrap_or_else(|_| sealed.path().into());
    let has_a_file = |pid: &Path| {
        let files = std::fs::read_dir(pid.join("fd")).into_iter().flatten().flatten();
        files
            .filter_map(|file| std::fs::read_link(file.path()).ok())
            .any(|file| file.starts_with(&below) && file.to_string_lossy().contains("keepers"))
    };
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let is_keeper = |pid: &PathBuf| {
        let line = std::fs::read(pid.join("cmdline")).unwrap_or_default();
        line.ends_with(b"fence\0keep\0") && has_a_file(pid)
    };
    processes
        .filter(is_keeper)
        .map(|pid| pid.file_name().expect("an id").to_string_lossy().into_owned())
        .collect()
}

#[track_caller]
fn the_keeper(sealed: &Sealed) -> String {
    let found = keepers(sealed);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// How often it was woken so far.
fn woken(keeper: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{keeper}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a line").trim().parse().expect("a number")
}

/// The keeper, once it has checked and sleeps.
#[track_caller]
fn the_sleeping_keeper(sealed: &Sealed) -> String {
    let keeper = the_keeper(sealed);
    let mut last = (u64::MAX, 0);
    eventually("the keeper sleeps", || {
        let now = woken(&keeper);
        last = if now == last.0 { (now, last.1 + 1) } else { (now, 0) };
        // 5 ms each.
        (last.1 > 40).then_some(())
    });
    assert_eq!(the_keeper(sealed), keeper, "it sleeps, and is not dead");
    keeper
}

#[track_caller]
fn all_gone(sealed: &Sealed) {
    eventually("no keeper is left", || keepers(sealed).is_empty().then_some(()));
}

fn expires_at(sealed: &Sealed, run: &str) -> Option<String> {
    let runs: Value = serde_json::from_str(&sealed.ok(&["--json", "call", "run/list"])).expect("runs");
    let run = runs["runs"].as_array().expect("a list").iter().find(|found| found["name"] == run)?;
    Some(run["expires_at"].as_str().expect("a time").to_owned())
}

fn fleet_with(sealed: &Sealed, tasks: usize) {
    sealed.ok(&["init"]);
    for n in 0..tasks {
        sealed.ok(&["add", &format!("task {n}"), "--board", "auth"]);
    }
}

on_both! {
    /// With half an hour of lease left. The attempts do not count: closing as many tabs as a task has attempts costs none.
    fn claims_of_a_closed_terminal_are_free_at_once(sealed: Sealed) {
        fleet_with(&sealed, 1);
        for _ in 0..3 {
            let mut shell = Shell::start(&sealed);
            shell.run("fence claim --keep -q");
            the_sleeping_keeper(&sealed);
            shell.kill();
            all_gone(&sealed);
        }
        assert_eq!(sealed.ok(&["claim", "auth-1", "-q"]), "task/auth-1@4");
        let shown = sealed.ok(&["show", "auth-1"]);
        assert!(shown.contains("\nattempts: 1 of 3\n"), "{shown}");
        sealed.readable();
        let log = sealed.ok(&["log", "auth-1"]);
        assert_eq!(log.matches("its terminal or agent is gone").count(), 3, "{log}");
    }

    /// The keeper does not know that renewal: it knows only its own.
    fn a_terminal_that_renewed_its_run_is_closed(sealed: Sealed) {
        fleet_with(&sealed, 1);
        let mut shell = Shell::start(&sealed);
        shell.run("fence claim --keep -q --ttl 20m");
        the_sleeping_keeper(&sealed);
        shell.run("fence renew --ttl 30m");
        shell.kill();
        all_gone(&sealed);
        assert_eq!(sealed.fence(&["claim", "auth-1", "-q"]).out, "task/auth-1@2");
    }

    fn a_process_left_behind_keeps_its_claim_until_it_ends(sealed: Sealed) {
        fleet_with(&sealed, 1);
        let mut shell = Shell::start(&sealed);
        shell.run("fence claim --keep -q");
        let work = shell.run("nohup sleep 1000 >/dev/null 2>&1 & echo $!").parse().expect("an id");
        the_sleeping_keeper(&sealed);
        shell.kill();
        // It has checked, and checks again.
        let keeper = the_keeper(&sealed);
        let before = woken(&keeper);
        eventually("it has looked", || (woken(&keeper) > before + 2).then_some(()));
        assert_eq!(sealed.fence(&["guard", "task/auth-1@1"]).code, 0);
        let work = rustix::process::Pid::from_raw(work).expect("an id");
        rustix::process::kill_process(work, rustix::process::Signal::KILL).expect("killed");
        all_gone(&sealed);
        assert_eq!(sealed.fence(&["guard", "task/auth-1@1"]).code, 5);
    }

    /// A process that acts for a named run may be on another machine, where no keeper sees it.
    fn a_named_run_is_not_ended(sealed: Sealed) {
        fleet_with(&sealed, 2);
        let mut one = Shell::start(&sealed);
        let mut two = Shell::start(&sealed);
        one.run("fence --run ours claim --keep -q");
        assert_eq!(two.run("fence --run ours claim -q"), "task/auth-2@1");
        the_sleeping_keeper(&sealed);
        one.kill();
        all_gone(&sealed);
        assert_eq!(two.run("fence guard task/auth-2@1 >/dev/null; echo $?"), "0");
    }

    fn a_run_has_one_keeper(sealed: Sealed) {
        fleet_with(&sealed, 9);
        let mut shell = Shell::start(&sealed);
        let said = shell.run("for i in 1 2 3 4 5 6 7 8; do fence claim --keep -q & done; wait");
        assert_eq!(said.lines().count(), 8, "{said}");
        let keeper = eventually("one is left", || match keepers(&sealed).as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        });
        shell.run("fence claim --keep -q");
        assert_eq!(the_keeper(&sealed), keeper);
        let doctor = sealed.ok(&["doctor"]);
        assert_eq!(doctor.matches(&format!("process {keeper} keeps run shell-")).count(), 1, "{doctor}");
        shell.kill();
        all_gone(&sealed);
    }

    /// `$(…)`, and every other reader of a pipe, waits until all writers have closed it.
    fn it_keeps_no_file_of_its_shell_open(sealed: Sealed) {
        fleet_with(&sealed, 3);
        let mut shell = Shell::start(&sealed);
        assert_eq!(shell.run("TOKEN=$(fence claim --keep -q 2>&1); echo \"got $TOKEN\""), "got task/auth-1@1");
        shell.run("fence release $TOKEN");
        all_gone(&sealed);
        assert_eq!(shell.run("(fence claim --keep -q 7>&1 9<>hello) 2>&1 | cat"), "task/auth-1@2");
        let keeper = PathBuf::from("/proc").join(the_keeper(&sealed));
        assert_eq!(std::fs::read_link(keeper.join("cwd")).expect("a directory"), Path::new("/"));
        // It closes the last pipe right after it has reported through it.
        for fd in ["0", "1", "2"] {
            eventually("it has nothing of ours open", || {
                let open = std::fs::read_link(keeper.join("fd").join(fd)).expect("open");
                (open == Path::new("/dev/null")).then_some(())
            });
        }
        let stat = std::fs::read_to_string(keeper.join("stat")).expect("its state");
        let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        let pid = keeper.file_name().expect("an id").to_str().expect("a number");
        assert_eq!((fields[3], fields[4]), (pid, "0"), "its own session, and no terminal");
        shell.kill();
        all_gone(&sealed);
    }

    /// It does not poll: the system wakes it.
    fn it_sleeps(sealed: Sealed) {
        fleet_with(&sealed, 1);
        let mut shell = Shell::start(&sealed);
        shell.run("fence claim --keep -q");
        the_sleeping_keeper(&sealed);
    }

    /// Another process resumes the agent's session, while a process of the first one still ends.
    fn a_resumed_session_keeps_its_claims(sealed: Sealed) {
        fleet_with(&sealed, 2);
        let agent = |does: &str| {
            sealed.script("claude", &format!("CLAUDE_CODE_SESSION_ID=s setsid -w bash -c '{does}; true'\nread -r _"));
            let mut agent = sealed.command("./claude");
            let mut agent = agent.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("an agent");
            let mut said = BufReader::new(agent.stdout.take().expect("its output")).lines().map_while(Result::ok);
            (agent, said.next().expect("a token"), said.next().expect("another line"))
        };
        let (mut first, token, work) = agent("fence claim --keep -q; sleep 1000 >/dev/null 2>&1 & echo $!");
        assert_eq!(token, "task/auth-1@1");
        let work = rustix::process::Pid::from_raw(work.parse().expect("an id")).expect("an id");
        the_sleeping_keeper(&sealed);
        let kept = expires_at(&sealed, "claude-s").expect("alive");
        drop(first.stdin.take());
        first.wait().expect("gone");
        eventually("the keeper doubts", || (expires_at(&sealed, "claude-s").expect("alive") < kept).then_some(()));

        let (mut resumed, token, _) = agent("fence claim auth-2 -q; echo");
        assert_eq!(token, "task/auth-2@1");
        rustix::process::kill_process(work, rustix::process::Signal::KILL).expect("killed");
        all_gone(&sealed);
        assert_eq!(sealed.fence(&["done", "task/auth-2@1"]).code, 0, "somebody is at work under it");
        assert_eq!(sealed.fence(&["done", "task/auth-1@1"]).code, 0);
        drop(resumed.stdin.take());
        resumed.wait().expect("gone");
    }

    /// The owner is the agent, not the shells that it starts for single commands.
    /// A client that gives its commands no variable, and starts each of them in a session of its own. Nobody has a terminal.
    fn a_named_run_is_kept_while_its_client_lives(sealed: Sealed) {
        fleet_with(&sealed, 1);
        sealed.script(
            "client",
            "setsid -w bash -c 'fence claim --keep --run mine; true' > said.new 2>&1; mv said.new said
             until test -e stop; do sleep 0.05; done",
        );
        let started = sealed.command("setsid").args(["-f", "./client"]).status().expect("setsid");
        assert!(started.success());
        let said = eventually("it claimed", || std::fs::read_to_string(sealed.path().join("said")).ok());
        assert!(said.trim_end().ends_with("(client) lives"), "{said}");
        the_sleeping_keeper(&sealed);
        std::fs::write(sealed.path().join("stop"), "").expect("written");
        all_gone(&sealed);
        // Others may use a named run, so that its lease has to expire.
        assert!(sealed.ok(&["claims"]).contains("task/auth-1@1"));
    }

    fn it_lives_as_long_as_the_agent(sealed: Sealed) {
        fleet_with(&sealed, 1);
        sealed.script("claude", "CLAUDE_CODE_SESSION_ID=s setsid -w bash -c 'fence claim --keep -q; true'\nread -r _");
        let mut agent = sealed.command("./claude");
        let mut agent = agent.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("an agent");
        let mut token = String::new();
        BufReader::new(agent.stdout.take().expect("its output")).read_line(&mut token).expect("a token");
        assert_eq!(token, "task/auth-1@1\n");
        the_sleeping_keeper(&sealed);
        drop(agent.stdin.take());
        agent.wait().expect("gone");
        all_gone(&sealed);
    }

    at once:

    fn it_renews_while_its_shell_lives_and_stops_with_it(sealed: Sealed) {
        fleet_with(&sealed, 1);
        let mut shell = Shell::start(&sealed);
        let said = shell.run("fence claim --keep --ttl 20s");
        let run = shell.run("fence whoami --json | grep -o 'shell-[0-9a-f-]*' | head -1");
        let keeper = the_keeper(&sealed);
        assert!(said.ends_with(&format!("process {keeper} renews it while this session lives")), "{said}");
        let mut until = expires_at(&sealed, &run).expect("alive");
        for _ in 0..2 {
            until = eventually("the lease is renewed", || {
                let now = expires_at(&sealed, &run).expect("it stays alive");
                (now > until).then_some(now)
            });
        }
        assert_eq!(the_keeper(&sealed), keeper);
        shell.kill();
        all_gone(&sealed);
        // Nobody renews the run, so its lease expires, and the task goes back.
        let token = eventually("the task comes back", || {
            let said = sealed.fence(&["claim", "auth-1", "-q"]);
            (said.code == 0).then_some(said.out)
        });
        assert_eq!(token, "task/auth-1@2");
    }

    /// With a lease of half an hour it would sleep for long, so a release wakes it.
    fn a_release_wakes_the_keeper(sealed: Sealed) {
        fleet_with(&sealed, 9);
        let mut shell = Shell::start(&sealed);
        for end in ["fence done $T", "fence release $T", "fence fail $T --reason x", "fence end", "fence done --next; fence done"] {
            shell.run("T=$(fence claim --keep -q)");
            the_sleeping_keeper(&sealed);
            shell.run(end);
            all_gone(&sealed);
        }
        // It exits only when the run holds nothing any more.
        shell.run("T=$(fence claim --keep -q); U=$(fence claim -q)");
        let keeper = the_sleeping_keeper(&sealed);
        shell.run("fence release $T");
        assert_eq!(the_sleeping_keeper(&sealed), keeper);
        shell.run("fence done $U");
        all_gone(&sealed);
    }

    /// Two terminals that act for one named run: it is kept until both are closed.
    fn a_keeper_has_several_owners(sealed: Sealed) {
        fleet_with(&sealed, 2);
        let mut one = Shell::with(&sealed, &[("FENCE_RUN", "ours/1")]);
        let mut two = Shell::with(&sealed, &[("FENCE_RUN", "ours/1")]);
        one.run("fence claim --keep -q --ttl 20s");
        let keeper = the_keeper(&sealed);
        two.run("fence claim --keep -q");
        assert_eq!(the_keeper(&sealed), keeper);
        one.kill();
        let before = expires_at(&sealed, "ours/1").expect("alive");
        eventually("it goes on", || (expires_at(&sealed, "ours/1").expect("alive") > before).then_some(()));
        assert_eq!(the_keeper(&sealed), keeper);
        two.kill();
        all_gone(&sealed);
    }

    /// A claim must not rely on a keeper that is exiting because its run holds nothing.
    fn a_claim_never_relies_on_an_exiting_keeper(sealed: Sealed) {
        fleet_with(&sealed, 60);
        let mut shell = Shell::start(&sealed);
        shell.run("T=$(fence claim --keep -q)");
        for _ in 0..25 {
            let said = shell.run("fence done $T >/dev/null & U=$(fence claim --keep -q); wait; T=$U; echo $T");
            assert!(said.starts_with("task/auth-"), "{said}");
            // After this check the keeper stays, or it was never there.
            shell.run("chmod --reference=. .fence/fence.db-keepers/* 2>/dev/null; sleep 0.05");
            eventually("there is one keeper", || (keepers(&sealed).len() == 1).then_some(()));
        }
        shell.kill();
        all_gone(&sealed);
    }
}

/// A command that leads its own session has no owner.
#[test]
fn without_a_terminal_or_agent_there_is_no_keeper() {
    let sealed = Sealed::sqlite();
    fleet_with(&sealed, 1);
    let alone = sealed.command("setsid").args(["-f", "fence", "claim", "--keep"]).output().expect("setsid");
    let said = String::from_utf8_lossy(&alone.stderr);
    assert!(
        said.starts_with(
            "error: there is no terminal and no agent for which a keeper could renew the run\nhint: "
        ),
        "{said}"
    );
    assert_eq!(sealed.ok(&["claim", "-q"]), "task/auth-1@1", "nothing was claimed");
}

#[test]
fn it_does_not_outlive_the_file_of_its_fleet() {
    for end in [
        "rm -rf .fence",
        "rm .fence/fence.db",
        "mv .fence elsewhere",
        "mv .fence/fence.db old.db; rm .fence/fence.db-*; fence init",
    ] {
        let sealed = Sealed::sqlite();
        fleet_with(&sealed, 1);
        let mut shell = Shell::start(&sealed);
        shell.run("fence claim --keep -q");
        the_sleeping_keeper(&sealed);
        // With half an hour of lease, only a change of the file can wake it.
        shell.run(&format!("{{ {end}; }} 2>/dev/null"));
        all_gone(&sealed);
        let database = sealed.path().join(".fence/fence.db");
        assert_eq!(database.exists(), end.ends_with("init"), "{end}: it was made again");
        if end.ends_with("init") {
            assert_eq!(
                sealed.ok(&["--json", "call", "run/list"]),
                r#"{"runs":[]}"#,
                "{end}: it wrote to another fleet"
            );
        }
    }
}

#[test]
fn it_does_not_outlive_the_schema_of_its_fleet() {
    let sealed = Sealed::postgres();
    fleet_with(&sealed, 1);
    let mut shell = Shell::start(&sealed);
    shell.run("fence claim --keep -q --ttl 20s");
    the_keeper(&sealed);
    let (url, runtime) = (sealed.url(), tokio::runtime::Runtime::new().expect("a runtime"));
    let schema = url.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).expect("a schema");
    let drop_it: &'static str = format!("drop schema {schema} cascade").leak();
    let there: &'static str =
        format!("select count(*) as n from pg_namespace where nspname = '{schema}'").leak();
    runtime.block_on(async {
        let fleet = fencepost::Fleet::open(&url).await.expect("the fleet");
        fleet
            .transaction(move |tx| Box::pin(async move { tx.execute(drop_it, vec![]).await }))
            .await
            .expect("dropped");
    });
    all_gone(&sealed);
    runtime.block_on(async {
        let other = Sealed::postgres();
        let fleet = fencepost::Fleet::open(&other.url()).await.expect("another fleet");
        let n = fleet.transaction(move |tx| {
            Box::pin(async move { tx.query(there, vec![]).await?[0].get::<i64>("n") })
        });
        assert_eq!(n.await.expect("a number"), 0, "it was made again");
    });
}

#[test]
fn a_database_that_is_down_is_retried_until_the_lease_is_over() {
    let sealed = Sealed::postgres();
    fleet_with(&sealed, 1);
    let proxy = Proxy::before(&sealed.url());
    let mut shell = Shell::with(&sealed, &[("FENCE_RUN", "kept"), ("FENCE_DB", &proxy.url)]);
    assert_eq!(shell.run("fence claim --keep -q --ttl 24s"), "task/auth-1@1");
    let keeper = the_keeper(&sealed);

    // Down for a while, so that it retries; then it renews as soon as possible.
    proxy.close();
    let first = expires_at(&sealed, "kept").expect("alive");
    eventually("it asks again", || (proxy.refused() >= 2).then_some(()));
    assert_eq!(expires_at(&sealed, "kept").as_deref(), Some(first.as_str()), "nobody could renew it");
    proxy.set(Mode::Open);
    eventually("it is renewed again", || (expires_at(&sealed, "kept").expect("alive") > first).then_some(()));
    assert_eq!(the_keeper(&sealed), keeper);

    proxy.close();
    all_gone(&sealed);
    assert_eq!(expires_at(&sealed, "kept"), None, "it went before the lease was over");
}
