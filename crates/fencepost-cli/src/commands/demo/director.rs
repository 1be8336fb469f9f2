//! The story: the work that is there, the two accidents, and what is seen of them.

use super::cast::{Cast, DOOMED, LEAD, LEASE, SAFE, send};
use crate::{identity::process, output::streams, private_files::write_whole};
use fencepost::{Code, Error, Millis, Op, Result, agent, channel, claim, event, inbox, mail, task};
use fencepost_client::Connection;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub const BOARD: &str = "demo";
/// The channel where the story is told.
pub const STORY: &str = "story";
/// The tasks during which the accidents happen.
pub const KILLED: &str = "survive kill -9";
pub const FROZEN: &str = "survive a closed lid";

/// The mailbox with a notice to the leads for every task that a worker has finished.
const NOTICES: &str = "leads/finished";

/// How long a write may take while a worker is frozen. A locked database would answer much later.
const UNLOCKED: Duration = Duration::from_secs(2);

/// A child process of the demo in the middle of an accident, as it wrote it to a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Scene {
    pub agent: String,
    pub run: String,
    pub token: String,
    pub worker: i32,
    pub child: i32,
}

/// The director's observations, to be compared with the log.
#[derive(Debug)]
pub struct Seen {
    pub killed: Scene,
    pub frozen: Scene,
    /// How the late write was answered: a code, or `accepted`.
    pub late: String,
    pub problems: Vec<String>,
}

pub struct Director<'d> {
    fleet: &'d Connection,
    cast: &'d mut Cast,
    audience: Audience,
}

/// Who follows the story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// A person, in `fence top`.
    View,
    Lines,
    Nobody,
}

impl<'d> Director<'d> {
    pub fn new(fleet: &'d Connection, cast: &'d mut Cast, audience: Audience) -> Self {
        Self { fleet, cast, audience }
    }

    pub async fn play(mut self) -> Result<Seen> {
        self.prepare().await?;
        self.cast.start(LEAD)?;
        DOOMED.iter().try_for_each(|agent| self.cast.start(agent))?;
        if self.audience == Audience::View {
            self.cast.open_view()?;
        }
        self.tell("a lead and two workers start; each trigger gets a process of its own").await?;
        let mut problems = Vec::new();
        self.scene("killed").await?;
        self.scene("frozen").await?;
        self.cast.start(SAFE)?;
        self.tell(&format!("a third worker starts: {SAFE}")).await?;
        let killed = self.held("killed").await?;
        self.cast.kill(killed.worker);
        self.write("killed.done", &killed.run)?;
        self.tell(&format!(
            "{}: its worker dies by kill -9 while it works on {}",
            killed.agent, killed.token
        ))
        .await?;
        let (frozen, stopped) = self.freeze().await?;
        self.tell(&format!("{}: its machine freezes while it works on {}", frozen.agent, frozen.token))
            .await?;

        let again = self.claimed_again(&killed).await?;
        self.tell(&format!("{again} gets the work of {}, whose lease is over", killed.agent)).await?;
        if is_alive(&killed) {
            problems.push(format!("process {} outlived its worker and its lease", killed.child));
        }
        let again = self.claimed_again(&frozen).await?;
        self.tell(&format!("{again} gets the work of {}, whose lease is over", frozen.agent)).await?;

        self.tell(&format!("{} wakes up, and hands in its result as if nothing had happened", frozen.agent))
            .await?;
        self.write("thaw", "")?;
        send(frozen.child, Signal::CONT);
        let late = self.file("late").await?;
        stopped.into_iter().for_each(|pid| send(pid, Signal::CONT));
        self.tell(&format!("its late write is answered: {late}")).await?;

        self.everything_is_finished().await?;
        Ok(Seen { killed, frozen, late, problems })
    }

    /// All work that is there at the beginning.
    async fn prepare(&self) -> Result<()> {
        for agent in [LEAD, DOOMED[0], DOOMED[1], SAFE] {
            let role = if agent == LEAD { agent::Role::Lead } else { agent::Role::Worker };
            self.call(agent::Join { agent: agent.into(), role: Some(role), ..agent::Join::default() })
                .await?;
        }
        for name in [STORY, "general"] {
            self.call(channel::Create { channel: name.into(), description: None }).await?;
        }
        let item = |name: &str, title: &str, priority, after: &[&str]| task::plan::Item {
            name: Some(name.into()),
            title: title.into(),
            priority: Some(priority),
            after: after.iter().map(|name| (*name).to_owned()).collect(),
            // On a very busy machine more than two runs may lose their leases.
            max_attempts: Some(20),
            ..Default::default()
        };
        let mut tasks = vec![
            item("killed", KILLED, 90, &[]),
            item("frozen", FROZEN, 90, &[]),
            item("schema", "design the schema", 60, &[]),
            item("parser", "write the parser", 50, &["schema"]),
            item("docs", "write the docs", 50, &["schema"]),
            item("tests", "test the parser", 50, &["parser"]),
            item("release", "release it", 50, &["tests", "docs", "killed", "frozen"]),
        ];
        tasks.push(task::plan::Item {
            offer: Some(SAFE.into()),
            ..item("review", "review the schema", 70, &["schema"])
        });
        tasks.extend((1..=4).map(|n| item(&format!("chore-{n}"), &format!("chore {n}"), 40, &[])));
        self.call(task::Plan { board: Some(BOARD.into()), tasks, ..Default::default() }).await?;
        for text in ["the login is slow", "thanks for the release!"] {
            let send = inbox::Send {
                agent: LEAD.into(),
                text: text.into(),
                sender: Some("kim".into()),
                ..Default::default()
            };
            self.call(send).await?;
        }
        let body = "@lead please look at the plan, @ann and @cy are ready";
        self.call(channel::Post { channel: "general".into(), body: body.into(), ..Default::default() })
            .await?;
        Ok(())
    }

    async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        self.fleet.call(op).await
    }

    /// Tells what happens: a post, which the view shows as an event, and a line where there is no view.
    async fn tell(&mut self, text: &str) -> Result<()> {
        self.cast.check()?;
        let post = channel::Post {
            channel: STORY.into(),
            body: text.into(),
            // The story mentions nobody.
            mentions: Some(Vec::new()),
            ..Default::default()
        };
        self.call(post).await?;
        if self.audience == Audience::Lines {
            streams::print(text)?;
        }
        Ok(())
    }

    /// A file that a process of the demo writes.
    async fn file(&mut self, name: &str) -> Result<String> {
        let path = self.cast.directory().join(name);
        loop {
            if let Ok(text) = std::fs::read_to_string(&path) {
                return Ok(text);
            }
            self.cast.check()?;
            // Real time: the processes are real.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn scene(&mut self, name: &str) -> Result<Scene> {
        serde_json::from_str(&self.file(name).await?).map_err(Error::internal)
    }

    /// A sign to the processes of the demo.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        write_whole(&self.cast.directory().join(name), text)
    }

    /// A scene whose work is held. On a busy machine an attempt may have lost its lease; then its next attempt is waited for.
    async fn held(&mut self, name: &str) -> Result<Scene> {
        loop {
            let scene = self.scene(name).await?;
            if self.call(claim::Guard::new(&scene.token)).await?.ok {
                return Ok(scene);
            }
            self.cast.check()?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Freezes a worker and its child in the middle of their work. Returns the frozen processes without the child. A worker that
    /// was in the middle of a write, and would keep the database locked, goes on for a moment.
    async fn freeze(&mut self) -> Result<(Scene, Vec<i32>)> {
        loop {
            let scene = self.held("frozen").await?;
            let stopped = freeze(&scene);
            // A write that changes nothing.
            let write = self.call(claim::Release::new("lock/nothing@1"));
            let unlocked = tokio::time::timeout(UNLOCKED, write).await.is_ok();
            if unlocked && self.call(claim::Guard::new(&scene.token)).await?.ok && is_alive(&scene) {
                self.write("frozen.done", "")?;
                return Ok((scene, stopped));
            }
            stopped.iter().chain([&scene.child]).for_each(|pid| send(*pid, Signal::CONT));
        }
    }

    /// The agent that claims the work of a dead run. Nobody asks for it: a waiting poll gets it when the lease ends.
    async fn claimed_again(&mut self, scene: &Scene) -> Result<String> {
        let (resource, fence) = scene.token.split_once('@').unwrap_or_default();
        let fence: i64 = fence.parse().unwrap_or_default();
        let waiting = async {
            let mut since = None;
            loop {
                self.cast.check()?;
                let list = event::List {
                    since: since.take(),
                    resource: Some(resource.into()),
                    limit: Some(100),
                    wait_ms: Some(Millis(200)),
                    ..Default::default()
                };
                let page = self.fleet.call(list).await?;
                let claimed = page.events.iter().find(|event| {
                    event.kind == "task.claimed" && event.fence.is_some_and(|claim| claim > fence)
                });
                if let Some(claimed) = claimed {
                    return Ok(claimed.agent.clone().unwrap_or_default());
                }
                since = Some(page.position);
            }
        };
        // On a busy machine an agent may have to finish something else first.
        match tokio::time::timeout(LEASE * 12, waiting).await {
            Ok(agent) => agent,
            Err(_) => Err(Error::new(
                Code::LeaseExpired,
                format!("nobody got `{resource}`, whose lease ended long ago"),
            )),
        }
    }

    /// Waits until every task is completed, and every agent has settled everything.
    async fn everything_is_finished(&mut self) -> Result<()> {
        loop {
            let tasks =
                self.call(task::List { board: Some(BOARD.into()), ..Default::default() }).await?.tasks;
            let agents = self.call(agent::List::default()).await?.agents;
            let open = tasks.iter().filter(|task| task.status != task::Status::Completed).count();
            let busy: usize = agents.iter().map(|agent| agent.runs.len()).sum();
            let mailboxes = self.call(mail::Stats::default()).await?.mailboxes;
            let messages: i64 =
                mailboxes.iter().map(|of| of.ready + of.waiting + of.processing + of.held).sum();
            // A notice is made when the lead polls, so one may be missing although nobody is busy.
            let told = mailboxes.iter().find(|of| of.name == NOTICES).map_or(0, |of| of.processed);
            if open == 0 && busy == 0 && messages == 0 && told == tasks.len() as i64 {
                return Ok(());
            }
            if tasks.iter().any(|task| task.status == task::Status::Failed) {
                return Err(Error::new(Code::Internal, "a task failed"));
            }
            self.cast.check()?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Stops a worker, its watchdog and its child, as a machine that sleeps does. Returns the processes without the child.
fn freeze(scene: &Scene) -> Vec<i32> {
    let below: Vec<i32> = process::all(&[])
        .filter(|process| process.parent == scene.worker && process.pid != scene.child)
        .map(|process| process.pid)
        .collect();
    let all = [vec![scene.worker], below].concat();
    all.iter().chain([&scene.child]).for_each(|pid| send(*pid, Signal::STOP));
    all
}

/// Does the child, or any process of its run, still live?
fn is_alive(scene: &Scene) -> bool {
    process::of_run(&scene.run, 0).next().is_some()
}
