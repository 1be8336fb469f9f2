//! The calls of `fence top` to a fleet.

use super::stuck::{self, Facts};
use crate::{
    output::text,
    view::fleet::{Agent, Board, FleetView, Work},
};
use fencepost::{
    Clock, Code, Error, Millis, Result, Time, admin, agent, board, event, mail, run,
    task::{self, State},
};
use fencepost_client::Connection;
use futures_util::future::try_join_all;
use std::collections::HashMap;

/// The most runs, failed tasks and mailboxes that are read.
const MOST: i64 = 1000;
/// Of ended runs only the newest are read: they may have lapsed.
const NEWEST: i64 = 100;
/// The most boards whose dependencies are read.
const BOARDS: usize = 20;
/// How long one call waits for news. A server that is cut off without a word is noticed after it.
const WAIT: Millis = Millis::minutes(1);
/// An agent that does not poll is online for five minutes, and nothing is written when they are over.
const ONLINE: Millis = Millis::minutes(5);

/// A fleet that is read again and again.
#[derive(Debug, Clone)]
pub struct Source {
    pub connection: Connection,
    /// The fleet's name for people.
    pub fleet: String,
    /// The most events to read.
    pub events: i64,
    /// How far the fleet's time is ahead of this machine's.
    pub ahead: Millis,
}

/// One reading.
#[derive(Debug)]
pub struct Reading {
    pub view: FleetView,
    /// Where the log ended before anything else was read: later events may not be in the view.
    pub position: String,
    /// When the view is no longer true, although nobody does anything.
    pub stale_at: Option<Time>,
}

impl Source {
    pub async fn open(connection: Connection, fleet: String, events: i64) -> Result<Self> {
        let fleet_time = connection.call(admin::About {}).await?.now;
        Ok(Self { connection, fleet, events, ahead: fleet_time.since(Clock::System.read()) })
    }

    /// The fleet's time.
    pub fn now(&self) -> Time {
        Clock::System.read().plus(self.ahead)
    }

    pub async fn read(&self) -> Result<Reading> {
        let fleet = &self.connection;
        let latest = event::List { last: Some(self.events), titles: true, ..event::List::default() };
        let events = fleet.call(latest).await?;
        let (agents, runs, newest, boards, mailboxes, due) = tokio::try_join!(
            fleet.call(agent::List { all: false }),
            fleet.call(run::List { limit: Some(MOST), ..run::List::default() }),
            fleet.call(run::List { all: true, limit: Some(NEWEST), ..run::List::default() }),
            fleet.call(board::List {}),
            fleet.call(mail::Stats { limit: Some(MOST), ..mail::Stats::default() }),
            fleet.call(admin::Due {}),
        )?;
        let boards = boards.boards;
        let count = |state: State| -> i64 { boards.iter().map(|board| in_state(board, state)).sum() };
        let held = count(State::InProgress) + count(State::Reviewing) > 0;
        let failures = count(State::Failed) + count(State::Cancelled) > 0;
        let blocked =
            boards.iter().filter(|board| failures && in_state(board, State::Blocked) > 0).take(BOARDS);
        let shown =
            blocked.map(|board| fleet.call(board::Show { board: board.name.clone(), limit: Some(MOST) }));
        let (in_progress, reviewing, failed, shown) = tokio::try_join!(
            self.tasks(State::InProgress, held),
            self.tasks(State::Reviewing, held),
            self.tasks(State::Failed, count(State::Failed) > 0),
            try_join_all(shown),
        )?;
        let titles = in_progress.tasks.iter().chain(&reviewing.tasks);
        let titles: HashMap<&str, &str> =
            titles.map(|task| (task.id.as_str(), task.title.as_str())).collect();
        let now = self.now();
        let runs = runs.runs.into_iter().filter(|run| run.holds > 0 || run.trigger.is_some());
        let mut running: Vec<Work> = runs.map(|run| work(run, &titles)).collect();
        running.sort_by(|a, b| (a.since, &a.run).cmp(&(b.since, &b.run)));
        let facts = Facts {
            agents: &agents,
            failed: &failed.tasks,
            boards: &shown,
            runs: &newest.runs,
            mailboxes: &mailboxes.mailboxes,
        };
        // A deadline that has passed, and that nobody has written, is in the view already.
        let ends = running.iter().map(|work| work.expires_at).chain(due.next_at);
        let offline = agents.agents.iter().any(|agent| agent.online).then(|| now.plus(ONLINE));
        let stale_at = ends.chain(offline).filter(|at| *at > now).min();
        let view = FleetView {
            fleet: self.fleet.clone(),
            now,
            stuck: stuck::find(&facts),
            more_stuck: failed.more || shown.iter().any(|board| board.more),
            agents: agents.agents.into_iter().map(agent).collect(),
            running,
            boards: boards.into_iter().map(board).collect(),
            events: events.events,
        };
        Ok(Reading { view, position: events.position, stale_at })
    }

    /// The tasks in a state. There is no call if there are none.
    async fn tasks(&self, status: State, any: bool) -> Result<task::list::Tasks> {
        if !any {
            return Ok(task::list::Tasks { tasks: Vec::new(), more: false });
        }
        let list = task::List { status: Some(status), limit: Some(MOST), ..task::List::default() };
        self.connection.call(list).await
    }

    /// Returns when there is an event after this position.
    pub async fn news(&self, position: &str) -> Result<()> {
        loop {
            let since = Some(position.to_owned());
            let list = event::List { since, limit: Some(1), wait_ms: Some(WAIT), ..event::List::default() };
            match self.connection.call(list).await {
                Ok(page) if page.events.is_empty() => {}
                Ok(_) => return Ok(()),
                // The events after this position were pruned, or the fleet was restored: a reading starts over.
                Err(error) if matches!(error.code(), Code::NotFound | Code::Invalid) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Is there no point in trying again?
pub fn is_final(error: &Error) -> bool {
    matches!(error.code(), Code::Unauthorized | Code::Forbidden)
}

fn in_state(board: &board::list::Board, state: State) -> i64 {
    board.tasks.get(state.as_str()).copied().unwrap_or(0)
}

fn agent(agent: agent::list::Agent) -> Agent {
    Agent {
        state: match (&agent.paused, agent.online) {
            (Some(paused), _) => text::paused(paused),
            (None, true) => "online".into(),
            (None, false) => "offline".into(),
        },
        role: agent.role.as_str().into(),
        busy: agent.runs.iter().filter(|run| run.trigger.is_some()).count(),
        max_concurrent: agent.max_concurrent,
        waiting: agent.waiting,
        name: agent.name,
    }
}

fn work(run: run::Run, titles: &HashMap<&str, &str>) -> Work {
    let task = |token: &String| Some(token.strip_prefix("task/")?.rsplit_once('@')?.0.to_owned());
    let title = run.claims.iter().filter_map(task).find_map(|id| titles.get(id.as_str()).copied());
    Work {
        title: title.map(str::to_owned),
        run: run.name,
        agent: run.agent,
        host: run.host,
        trigger: run.trigger,
        claims: run.claims,
        since: run.opened_at,
        expires_at: run.expires_at,
        cost: run.cost,
    }
}

fn board(board: board::list::Board) -> Board {
    let done = in_state(&board, State::Completed);
    let of = board.tasks.values().sum::<i64>() - in_state(&board, State::Cancelled);
    Board { done, of, ready: board.ready, tasks: board.tasks, name: board.name }
}
