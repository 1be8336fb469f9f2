//! Wake-ups for unread posts, carried out by `fence work`: one child, one post, and phases that a killed worker leaves to the next.

use crate::{
    on_both,
    proxy::Proxy,
    running::{Running, ask, read, until},
    sealed::{Sealed, Serving},
    work::{json, log, runs, succeeded, work},
};
use fencepost::channel;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;

/// Agents bob and eve are members of a new channel; ann is not.
fn channel(sealed: &Sealed, name: &str) {
    sealed.ok(&["channel", "create", name]);
    for agent in ["bob", "eve"] {
        sealed.ok(&["agent", "join", agent]);
        sealed.ok(&["channel", "join", name, "--agent", agent]);
    }
}

/// Ann posts, eve reads it, and bob is to be woken.
fn wake(sealed: &Sealed, channel: &str, text: &str) {
    sealed.ok(&["channel", "post", channel, text, "--agent", "ann"]);
    sealed.ok(&["channel", "read", channel, "--agent", "eve"]);
    until("bob's wake-up is scheduled", || {
        tick(sealed);
        pending(sealed, "bob") == 1
    });
}

/// A server may have looked before, so what this call schedules says nothing. On PostgreSQL it gives up if it waits for a lock too
/// long, so callers repeat it.
fn tick(sealed: &Sealed) {
    sealed.fence(&["call", "storm/tick"]);
}

/// How many wake-ups of the agent wait or run.
fn pending(sealed: &Sealed, agent: &str) -> usize {
    let request = format!(r#"{{"mailbox": "wakeups/{agent}"}}"#);
    let listed: Value = serde_json::from_str(&sealed.ok(&["call", "mail/list", &request])).expect("JSON");
    let messages = listed["messages"].as_array().expect("a list").clone();
    messages
        .iter()
        .filter(|message| message["status"] == "pending" || message["status"] == "processing")
        .count()
}

/// No limit on how often an agent is woken, and no pause after a failure.
fn at_once(sealed: &Sealed, attempts: &str) {
    sealed.ok(&[
        "call",
        "storm/set",
        r#"{"values": {"min_interval_ms": 0, "max_triggers_per_window": 100}}"#,
    ]);
    sealed.ok(&["mail", "configure", "wakeups/bob", "--max-attempts", attempts, "--backoff", "0s"]);
}

/// The posts of a channel: author, text, and the post that it answers.
fn posts(sealed: &Sealed, channel: &str) -> Vec<String> {
    let read = channel::Read {
        channel: channel.into(),
        agent: "reader".into(),
        from: Some(1),
        peek: true,
        ..channel::Read::default()
    };
    let page = ask(sealed, async |fleet| fleet.call(read).await).expect("the posts");
    let line = |post: &channel::PostView| {
        let to = post.reply_to.map_or(String::new(), |to| format!(" ({to})"));
        format!("{}: {}{to}", post.author.as_deref().unwrap_or_default(), post.body)
    };
    page.posts.iter().map(line).collect()
}

fn lines(sealed: &Sealed, name: &str) -> Vec<String> {
    read(&sealed.path().join(name)).lines().map(str::to_owned).collect()
}

on_both! {
    /// A wake-up starts one child, and its result is posted once. The post wakes nobody.
    fn the_result_of_a_wake_up_is_posted(sealed: Sealed) {
        sealed.ok(&["init"]);
        channel(&sealed, "general");
        wake(&sealed, "general", "is the build\nclaim: green?");
        sealed.script("cmd", r#"
            cat > prompt; echo "$FENCE_TRIGGER $FENCE_CHANNEL ${FENCE_CLAIM-none}" >> started
            echo noise >&2; echo "@eve it is green""#);
        let said = work(&sealed, &["--agent", "bob", "--count", "1", "--", "./cmd"]).end();
        succeeded(&said);
        assert!(said.out.contains("bob: unread_wakeup general: 1 unread post  run bob-"), "{said:?}");
        assert!(said.out.contains("bob: general: 1 unread post done after"), "{said:?}");
        let all = ["ann: is the build\nclaim: green?", "bob: @eve it is green (1)"];
        assert_eq!(posts(&sealed, "general"), all);
        let prompt = read(&sealed.path().join("prompt"));
        assert!(prompt.contains("You are agent bob. Channel general"), "{prompt}");
        assert!(prompt.contains("\n        is the build\n        claim: green?\n"), "untrusted text is indented: {prompt}");
        tick(&sealed);
        assert_eq!((pending(&sealed, "bob"), pending(&sealed, "eve")), (0, 0), "the post is quiet");
        succeeded(&work(&sealed, &["--agent", "eve", "--drain", "--", "./cmd"]).end());
        succeeded(&work(&sealed, &["--agent", "bob", "--drain", "--", "./cmd"]).end());
        assert_eq!(lines(&sealed, "started"), ["unread_wakeup general none"]);
        assert_eq!((posts(&sealed, "general").len(), runs(&sealed).len()), (2, 1));
    }

    /// A worker that waits gets the wake-up. A child without output posts nothing, and one that settles its run itself has answered.
    fn a_waiting_worker_is_woken(sealed: Sealed) {
        sealed.ok(&["init"]);
        channel(&sealed, "general");
        channel(&sealed, "other");
        sealed.script("cmd", r#"
            echo "$FENCE_CHANNEL" >> started
            [ "$FENCE_CHANNEL" = general ] && exit
            fence channel post other "mine" > /dev/null; fence settle "$FENCE_RUN" > /dev/null; echo not posted"#);
        let worker = work(&sealed, &["--agent", "bob", "--count", "2", "--", "./cmd"]);
        until("it waits", || worker.out().contains("bob: joined"));
        wake_waiting(&sealed, "general");
        until("it was woken", || worker.out().contains("bob: general: 1 unread post done"));
        wake_waiting(&sealed, "other");
        succeeded(&worker.end());
        assert_eq!(lines(&sealed, "started"), ["general", "other"]);
        assert_eq!(posts(&sealed, "general"), ["ann: hello"]);
        assert_eq!(posts(&sealed, "other"), ["ann: hello", "bob: mine"]);
    }

    without a server:

    /// At the limit of running wake-ups the worker waits, and no process is started.
    fn the_limit_of_running_wake_ups_holds(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["call", "storm/set", r#"{"values": {"max_active_per_agent": 1}}"#]);
        for name in ["general", "other", "third"] {
            channel(&sealed, name);
            wake_waiting(&sealed, name);
        }
        sealed.script("cmd", r#"
            touch "in.$FENCE_RUN"; set -- in.*; [ $# -le 1 ] || touch too-many
            until [ -e go ]; do sleep 0.02; done
            rm "in.$FENCE_RUN"; echo the answer"#);
        let worker = work(&sealed, &["--agent", "bob", "--max-concurrent", "3", "--count", "3", "--", "./cmd"]);
        until("one runs", || worker.out().contains("1 unread post  run"));
        let refused = sealed.fence(&["poll", "--agent", "bob", "--accept", "unread_wakeup"]);
        assert!(refused.code == 3 && refused.out.contains("as many wake-ups as it may"), "{refused:?}");
        fs::write(sealed.path().join("go"), "").expect("written");
        succeeded(&worker.end());
        assert!(!sealed.path().join("too-many").exists(), "more than one at a time");
        assert_eq!(["general", "other", "third"].map(|name| posts(&sealed, name).len()), [2, 2, 2]);
    }

    /// Only the last failed attempt gives notice, which wakes nobody.
    fn a_wake_up_that_failed_for_good_gives_notice(sealed: Sealed) {
        sealed.ok(&["init"]);
        channel(&sealed, "general");
        at_once(&sealed, "2");
        wake(&sealed, "general", "hello");
        let words = ["--agent", "bob", "--count", "1", "--", "sh", "-c", "echo no luck; exit 3"];
        succeeded(&work(&sealed, &words).end());
        assert_eq!(posts(&sealed, "general"), ["ann: hello"], "another attempt follows");
        succeeded(&work(&sealed, &words).end());
        let notice = "bob: bob did not answer: 2 attempts failed, the last one because its command exited with 3 (1)";
        assert_eq!(posts(&sealed, "general"), ["ann: hello", notice]);
        assert_eq!((pending(&sealed, "bob"), pending(&sealed, "eve")), (0, 0));
        tick(&sealed);
        assert_eq!(pending(&sealed, "eve"), 0, "the notice is quiet");
    }

    /// The next wake-up in a channel resumes the client's session there. If that fails, a new session is started.
    fn a_session_is_resumed_per_channel(sealed: Sealed) {
        sealed.ok(&["init"]);
        channel(&sealed, "general");
        channel(&sealed, "other");
        at_once(&sealed, "3");
        sealed.script("client", r#"
            echo "$FENCE_CHANNEL $*" >> calls
            [ -e broken ] && [ "$1" = --resume ] && exit 1
            echo "{\"type\": \"result\", \"session\": \"s-$FENCE_CHANNEL\", \"text\": \"said\"}""#);
        fs::write(sealed.path().join("mine.toml"), r#"
            command = ["./client"]
            resume = ["--resume", "{session}"]
            [[read]]
            where = { "/type" = "result" }
            session = "/session"
            result = "/text"
        "#).expect("written");
        let answer = |channel: &str, count: &str| {
            wake(&sealed, channel, "hello");
            succeeded(&work(&sealed, &["--agent", "bob", "--profile", "mine.toml", "--count", count]).end());
        };
        answer("general", "1");
        answer("other", "1");
        answer("general", "1");
        fs::write(sealed.path().join("broken"), "").expect("written");
        answer("general", "2");
        let calls = ["general ", "other ", "general --resume s-general", "general --resume s-general", "general "];
        assert_eq!(lines(&sealed, "calls"), calls);
        let hello = "ann: hello";
        let all = [hello, "bob: said (1)", hello, "bob: said (3)", hello, "bob: said (5)"];
        assert_eq!(posts(&sealed, "general"), all);
    }

    /// A worker dies by kill -9 between each two phases, and a worker on another machine takes over: the child runs again only before
    /// its result was delivered, and the result is posted once.
    fn a_worker_killed_between_two_phases(sealed: Sealed) {
        let fleet = Machines::new(&sealed);
        for phase in PHASES {
            let first = fleet.lose(phase);
            first.send(Signal::KILL);
            assert_eq!(first.end().code, -1);
            fleet.take_over(phase);
            let expected = if phase == Phase::Running { 2 } else { 1 };
            assert_eq!(fleet.started(phase), expected, "{phase:?}");
            fleet.account(phase);
        }
    }

    /// A worker is frozen between each two phases, and goes on after another one has done its work: it posts and settles nothing more.
    fn a_frozen_worker_comes_back_late(sealed: Sealed) {
        let fleet = Machines::new(&sealed);
        for phase in PHASES {
            let first = fleet.lose(phase);
            first.send(Signal::STOP);
            fleet.take_over(phase);
            fleet.proxy.release();
            first.send(Signal::CONT);
            let said = first.end();
            assert!(said.out.contains(&format!("bob: {}: 1 unread post lost after", phase.channel())), "{phase:?}: {said:?}");
            fleet.account(phase);
        }
    }

    /// Posts that came after the result was delivered are not lost: the next wake-up brings them.
    fn later_posts_stay_unread(sealed: Sealed) {
        let fleet = Machines::new(&sealed);
        at_once(&sealed, "3");
        let first = fleet.lose(Phase::Delivered);
        sealed.ok(&["channel", "post", Phase::Delivered.channel(), "and this?", "--agent", "ann"]);
        first.send(Signal::KILL);
        assert_eq!(first.end().code, -1);
        fleet.take_over(Phase::Delivered);
        until("the second wake-up is scheduled", || {
            tick(&sealed);
            pending(&sealed, "bob") == 1
        });
        succeeded(&work(&fleet.second, &["--agent", "bob", "--count", "1", "--", "./cmd"]).end());
        let all = ["ann: hello", "ann: and this?", "bob: the answer (1)", "bob: the answer (2)"];
        assert_eq!(posts(&sealed, Phase::Delivered.channel()), all);
    }

    /// The lease is short until the child has started.
    fn the_lease_is_short_until_the_child_has_started(sealed: Sealed) {
        let fleet = Machines::new(&sealed);
        let lease = || {
            let run = runs(&sealed).into_iter().find(|run| run.alive).expect("its run");
            run.expires_at.since(run.opened_at).0
        };
        let first = fleet.lose(Phase::Claimed);
        // 45 s, and the time from the poll to the renewal.
        assert!((45_000..1_800_000).contains(&lease()), "{}", lease());
        fleet.proxy.release();
        until("it is lengthened", || lease() >= 3_000_000);
        fs::write(sealed.path().join("go"), "").expect("written");
        succeeded(&first.end());
    }
}

fn wake_waiting(sealed: &Sealed, channel: &str) {
    sealed.ok(&["channel", "post", channel, "hello", "--agent", "ann"]);
    let request = format!(r#"{{"channel": "{channel}", "agent": "bob"}}"#);
    until("bob's wake-up is scheduled", || {
        tick(sealed);
        json(sealed, &["call", "storm/why", &request])["state"] != "due"
    });
}

/// The moments at which a worker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The wake-up is claimed, and its child is not started.
    Claimed,
    Running,
    /// The result is saved, and not posted.
    Delivered,
    /// The result is posted, and the wake-up is not settled.
    Posted,
}

const PHASES: [Phase; 4] = [Phase::Claimed, Phase::Running, Phase::Delivered, Phase::Posted];

impl Phase {
    fn channel(self) -> &'static str {
        match self {
            Phase::Claimed => "claimed",
            Phase::Running => "running",
            Phase::Delivered => "delivered",
            Phase::Posted => "posted",
        }
    }

    /// The request whose reply does not arrive.
    fn last_request(self) -> Option<&'static str> {
        match self {
            Phase::Claimed => Some("/v1/claim/renew"),
            Phase::Running => None,
            Phase::Delivered => Some("/v1/mail/checkpoint"),
            Phase::Posted => Some("/v1/channel/post"),
        }
    }
}

/// Two machines with workers of one agent. A proxy before the first one holds replies back.
struct Machines<'m> {
    sealed: &'m Sealed,
    proxy: Proxy,
    first: Sealed,
    second: Sealed,
    _server: Serving,
}

impl<'m> Machines<'m> {
    fn new(sealed: &'m Sealed) -> Self {
        sealed.ok(&["init"]);
        let server = Serving::start(sealed, &[]);
        let proxy = Proxy::before(&server.url);
        let (first, second) = (sealed.over(&proxy.url), sealed.over(&server.url));
        let shared = sealed.path().display();
        for machine in [&first, &second] {
            machine.script(
                "cmd",
                &format!(
                    r#"echo "$FENCE_RUN" >> "{shared}/started.$FENCE_CHANNEL"
                [ "$FENCE_CHANNEL" = running ] && until [ -e "{shared}/go" ] || [ ! -d "{shared}" ]; do sleep 0.02; done
                echo the answer"#
                ),
            );
        }
        Self { sealed, proxy, first, second, _server: server }
    }

    fn started(&self, phase: Phase) -> usize {
        lines(self.sealed, &format!("started.{}", phase.channel())).len()
    }

    /// A worker of the first machine that is at this moment of a wake-up.
    fn lose(&self, phase: Phase) -> Running {
        channel(self.sealed, phase.channel());
        wake(self.sealed, phase.channel(), "hello");
        if let Some(request) = phase.last_request() {
            self.proxy.hold(request, 0);
        }
        // The lease does not run out by itself.
        let first = work(
            &self.first,
            &["--agent", "bob", "--count", "1", "--ttl", "1h", "--grace", "200ms", "--", "./cmd"],
        );
        match phase {
            Phase::Running => until("its child runs", || self.started(phase) == 1),
            _ => until("it waits for a reply", || self.proxy.has_it()),
        }
        first
    }

    /// The lease of the first worker ends, and a worker of the second machine does the rest.
    fn take_over(&self, phase: Phase) {
        self.sealed
            .sql("update run set expires_at = opened_at where ended_at is null and name not like 'fence/%'");
        fs::write(self.sealed.path().join("go"), "").expect("written");
        let said = work(&self.second, &["--agent", "bob", "--count", "1", "--", "./cmd"]).end();
        succeeded(&said);
        fs::remove_file(self.sealed.path().join("go")).expect("removed");
        let how = match phase {
            Phase::Claimed | Phase::Running => ", again: timeout",
            Phase::Delivered | Phase::Posted => ", no process: callback_retry",
        };
        assert!(
            said.out.contains(how) && said.out.contains("1 unread post done after"),
            "{phase:?}: {said:?}"
        );
        self.proxy.release();
    }

    /// One result, and one accepted completion for each of bob's wake-ups so far.
    fn account(&self, phase: Phase) {
        assert_eq!(posts(self.sealed, phase.channel()), ["ann: hello", "bob: the answer (1)"], "{phase:?}");
        assert_eq!(pending(self.sealed, "bob"), 0, "{phase:?}");
        let counts = log(self.sealed);
        let settled = counts.iter().filter(|((kind, _), _)| kind == "message.completed");
        assert!(settled.clone().all(|(_, n)| *n == 1), "{phase:?}: {counts:?}");
        let reclaimed = counts.iter().filter(|((kind, _), _)| kind == "wakeup.reclaimed").count();
        let so_far = PHASES.iter().position(|one| *one == phase).expect("one of them") + 1;
        assert_eq!(reclaimed, so_far, "{phase:?}");
        let claims = json(self.sealed, &["claims"]);
        // A server may be at work.
        let claims = claims["claims"].as_array().expect("claims").iter();
        let left = claims
            .filter(|claim| !claim["resource"].as_str().is_some_and(|of| of.starts_with("lock/fence/")));
        assert_eq!(left.count(), 0, "{phase:?}");
    }
}
