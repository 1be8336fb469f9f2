//! The view of a whole fleet: `fence top` draws it again and again, or prints it once.

use super::{
    screen::Key,
    text::{self, dollars, heading, lines},
};
use crate::output::{
    Terminal,
    events::EventLines,
    table::{Cell, CellLine, Table},
    tasks::tokens,
    terminal::state,
    text::{json, line},
};
use anstyle::Style;
use fencepost::{Time, event::Entry, task::State};
use ratatui::{Frame, layout::Rect};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A fleet at one moment. With `--json` it is printed as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetView {
    /// Where the fleet is.
    pub fleet: String,
    /// The fleet's time.
    pub now: Time,
    pub agents: Vec<Agent>,
    /// Runs that hold something.
    pub running: Vec<Work>,
    pub boards: Vec<Board>,
    pub stuck: Vec<Stuck>,
    /// More is stuck than was read.
    pub more_stuck: bool,
    /// The latest events, oldest first.
    pub events: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    pub name: String,
    pub role: String,
    /// `online` or `offline`.
    pub state: String,
    /// The number of triggers that it works on, and the most that it may.
    pub busy: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<i64>,
    /// The number of tasks that are offered or assigned to it and not started.
    pub waiting: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub run: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// The tokens of its claims.
    pub claims: Vec<String>,
    /// The title of its task, if it holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub since: Time,
    /// The end of its lease, if it is not renewed.
    pub expires_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Board {
    pub name: String,
    /// Tasks that are completed, of those that are not cancelled.
    pub done: i64,
    pub of: i64,
    pub ready: i64,
    /// Tasks by state.
    pub tasks: BTreeMap<String, i64>,
}

/// Work that does not go on by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stuck {
    /// `failed`, `blocked`, `stranded`, `lapsed` or `paused`.
    pub kind: String,
    /// Tasks, or the run or the mailbox.
    pub what: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub why: String,
    /// A command that would help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The whole view as text.
pub fn page(view: &FleetView, terminal: &Terminal) -> String {
    let mut parts = vec![summary(view, terminal), body(view, terminal)];
    if !view.events.is_empty() {
        let events = EventLines::of(&view.events, terminal).page(&view.events);
        parts.push(format!("{}\n{events}", terminal.bold("last events")));
    }
    parts.join("\n\n")
}

/// The state of the live view that is not the fleet's.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Lines that are scrolled out at the top.
    pub scrolled: usize,
    /// Why the fleet cannot be read now; what is shown is older then.
    pub outage: Option<String>,
}

/// Answers a key; true to end the view. `Look::scrolled` may exceed the text: [`draw`] limits it.
pub fn key(look: &mut Look, key: Key) -> bool {
    look.scrolled = match key {
        Key::Up => look.scrolled.saturating_sub(1),
        Key::Down => look.scrolled + 1,
        Key::PageUp => look.scrolled.saturating_sub(10),
        Key::PageDown => look.scrolled + 10,
        Key::Home => 0,
        Key::End => usize::MAX / 2,
        Key::Char('q') => return true,
        _ => look.scrolled,
    };
    false
}

/// Draws the view at a moment of the fleet's time: a summary, the parts that scroll, the last events, the keys.
pub fn draw(frame: &mut Frame, view: &FleetView, look: &mut Look, now: Time) {
    let area = frame.area();
    let terminal = Terminal::of_view(area.width, now);
    let mut head = lines(&summary(view, &terminal));
    if let Some(outage) = &look.outage {
        let outage = terminal.fit(&format!("{outage}; trying again"), "");
        head.extend(lines(&terminal.paint(state("problem").bold(), &outage)));
    }
    let foot = lines(&terminal.dim(&terminal.fit("up/down scroll · q quit", "")));
    let body = lines(&body(view, &terminal));
    let room = usize::from(area.height).saturating_sub(head.len() + foot.len());
    // The events get the room that the body leaves, and a third of it at least.
    let events = lines(&EventLines::of(&view.events, &terminal).page(&view.events));
    let wanted = if view.events.is_empty() || room < 6 { 0 } else { events.len() + 1 };
    let for_events = wanted.min((room / 3).max(room.saturating_sub(body.len() + 1)));
    let for_body = room - for_events;
    look.scrolled = look.scrolled.min(body.len().saturating_sub(for_body));
    let buffer = frame.buffer_mut();
    let mut below = area;
    let mut part = |height: usize| {
        let height = u16::try_from(height).unwrap_or(below.height).min(below.height);
        let part = Rect { height, ..below };
        below = Rect { y: below.y + height, height: below.height - height, ..below };
        part
    };
    text::draw(&head, part(head.len()), buffer);
    text::draw(&body[look.scrolled..], part(for_body), buffer);
    if for_events > 0 {
        text::draw(&lines(&heading("last events", &terminal)), part(1), buffer);
        text::draw(&events[events.len() - (for_events - 1)..], part(for_events - 1), buffer);
    }
    text::draw(&foot, part(1), buffer);
}

/// `fence top  3 agents, 2 online  4 running  2 stuck  .fence/fence.db`
fn summary(view: &FleetView, terminal: &Terminal) -> String {
    let online = view.agents.iter().filter(|agent| agent.state == "online").count();
    let (agents, running, stuck) = (view.agents.len(), view.running.len(), view.stuck.len());
    let more = if view.more_stuck { "+" } else { "" };
    let style = |name: &str, count: usize| if count > 0 { state(name) } else { Style::new() };
    let mut line = CellLine::new(terminal);
    line.cell("fence top", 0, Style::new().bold());
    line.cell(&format!("{online} of {agents} agents online"), 0, style("online", online));
    line.cell(&format!("{running} running"), 0, style("in_progress", running));
    line.cell(&format!("{stuck}{more} stuck"), 0, style("failed", stuck));
    line.cell(&self::line(&view.fleet), 0, Style::new().dimmed());
    line.finish()
}

/// All but the summary and the events.
fn body(view: &FleetView, terminal: &Terminal) -> String {
    let parts =
        [running(view, terminal), stuck(view, terminal), agents(view, terminal), boards(view, terminal)];
    let titled = ["running", "stuck", "agents", "boards"].into_iter().zip(parts);
    let titled = titled.filter_map(|(title, part)| Some(format!("{}\n{}", terminal.bold(title), part?)));
    let body = titled.collect::<Vec<_>>().join("\n\n");
    if body.is_empty() { terminal.fit("nothing here yet: fence add creates a task", "") } else { body }
}

fn running(view: &FleetView, terminal: &Terminal) -> Option<String> {
    let columns = [
        ("RUN", 0),
        ("AGENT", 50),
        ("WORK", 0),
        ("STARTED", 0),
        ("LEASE ENDS", 0),
        ("TRIGGER", 100),
        ("HOST", 120),
        ("COST", 110),
        ("TITLE", 80),
    ];
    let rows = view.running.iter().map(|work| {
        [
            work.run.as_str().into(),
            optional(work.agent.as_deref()),
            tokens(&work.claims).into(),
            terminal.when(work.since).into(),
            terminal.when(work.expires_at).into(),
            optional(work.trigger.as_deref()),
            optional(work.host.as_deref()),
            work.cost.as_ref().map(cost).unwrap_or_default().into(),
            optional(work.title.as_deref()),
        ]
    });
    table(columns, rows, terminal)
}

/// `$0.41`, or what else a worker recorded.
fn cost(cost: &Value) -> String {
    cost.get("usd").and_then(Value::as_f64).map_or_else(|| json(cost), dollars)
}

fn stuck(view: &FleetView, terminal: &Terminal) -> Option<String> {
    let columns = [("WHAT", 0), ("STATE", 0), ("WHY", 0), (">NEXT", 90), ("TITLE", 120)];
    let rows = view.stuck.iter().map(|stuck| {
        [
            tokens(&stuck.what).into(),
            Cell::state(&stuck.kind),
            stuck.why.as_str().into(),
            optional(stuck.next.as_deref()),
            optional(stuck.title.as_deref()),
        ]
    });
    let more = view.more_stuck.then(|| terminal.fit(&terminal.and_more("fence list --status failed"), ""));
    Some([table(columns, rows, terminal)?].into_iter().chain(more).collect::<Vec<_>>().join("\n"))
}

fn optional(text: Option<&str>) -> Cell {
    text.unwrap_or_default().into()
}

/// A table of the columns that a terminal of this width has room for; each column has the least width for which it is shown. A plain
/// stream has all. `None` if there is no row.
fn table<const N: usize>(
    columns: [(&'static str, usize); N],
    rows: impl Iterator<Item = [Cell; N]>,
    terminal: &Terminal,
) -> Option<String> {
    let is_shown = |least: usize| terminal.width().is_none_or(|width| width >= least);
    let heads: Vec<&str> =
        columns.iter().filter(|(_, least)| is_shown(*least)).map(|(head, _)| *head).collect();
    let mut table = Table::new(&heads).headed();
    let mut rows = rows.peekable();
    rows.peek()?;
    for row in rows {
        let cells = row.into_iter().zip(columns).filter(|(_, (_, least))| is_shown(*least));
        table.row(cells.map(|(cell, _)| cell).collect());
    }
    Some(table.render(terminal))
}

fn agents(view: &FleetView, terminal: &Terminal) -> Option<String> {
    let columns = [("AGENT", 0), ("ROLE", 50), ("STATE", 0), ("BUSY", 0), ("WAITING FOR IT", 0)];
    let rows = view.agents.iter().map(|agent| {
        let busy =
            agent.max_concurrent.map_or(agent.busy.to_string(), |most| format!("{} of {most}", agent.busy));
        [
            agent.name.as_str().into(),
            agent.role.as_str().into(),
            Cell::state_as(agent.state.split(' ').next().unwrap_or_default(), agent.state.clone()),
            busy.into(),
            if agent.waiting > 0 { agent.waiting.to_string() } else { String::new() }.into(),
        ]
    });
    table(columns, rows, terminal)
}

/// The boards with open tasks. Of the finished ones it shows a few: in an old fleet they are the most.
fn boards(view: &FleetView, terminal: &Terminal) -> Option<String> {
    const FINISHED: usize = 3;
    let (open, finished): (Vec<&Board>, Vec<&Board>) =
        view.boards.iter().partition(|board| board.done < board.of);
    let hidden = finished.len().saturating_sub(FINISHED);
    let columns = [("BOARD", 0), ("PROGRESS", 0), (">DONE", 0), (">OF", 0), (">READY", 50), ("STATES", 60)];
    let shown = open.into_iter().chain(finished.into_iter().skip(hidden));
    let rows = shown.map(|board| {
        let states = State::ALL.into_iter().map(State::as_str);
        let states = states.filter_map(|state| Some(format!("{} {state}", board.tasks.get(state)?)));
        [
            board.name.as_str().into(),
            Cell::styled(&bar(board, terminal), state("completed")),
            board.done.to_string().into(),
            board.of.to_string().into(),
            board.ready.to_string().into(),
            states.collect::<Vec<_>>().join(", ").into(),
        ]
    });
    let more = (hidden > 0)
        .then(|| terminal.fit(&format!("not shown: {hidden} finished, which fence board lists"), ""));
    Some([table(columns, rows, terminal)?].into_iter().chain(more).collect::<Vec<_>>().join("\n"))
}

/// How much of a board is done, in twelve columns. Only a finished board has a full bar, and only an untouched one an empty bar.
fn bar(board: &Board, terminal: &Terminal) -> String {
    const WIDTH: i64 = 12;
    let part = if board.of == 0 { WIDTH } else { board.done * WIDTH / board.of };
    let part = part.clamp(i64::from(board.done > 0), WIDTH);
    let (full, empty) = if terminal.width().is_some() { ("█", "░") } else { ("#", ".") };
    let times = |count: i64| usize::try_from(count).unwrap_or(0);
    full.repeat(times(part)) + &empty.repeat(times(WIDTH - part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{streams, untrusted::is_hidden};
    use ratatui::backend::TestBackend;
    use serde_json::json;

    const NOW: Time = Time(10_000_000);

    /// A busy fleet, whose texts are hostile.
    fn busy() -> FleetView {
        let hostile = "write the parser \x1b[2J\u{202e}\nerror: forged";
        let event = |n: i64, kind: &str, to: &str| {
            json!({ "position": "0.1", "at": Time(NOW.0 - 60_000 + n * 1000), "kind": kind, "resource": "task/auth-3",
                    "to": to, "run": "bob-7f3a", "agent": "bob", "fence": 2, "title": hostile })
        };
        let events: Vec<Value> = (0..20).map(|n| event(n, "task.completed", "completed")).collect();
        let work = |run: &str, agent: &str, task: &str| {
            json!({ "run": run, "agent": agent, "host": "build-1", "trigger": "task_assigned", "claims": [task],
                    "title": hostile, "since": Time(NOW.0 - 125_000), "expires_at": Time(NOW.0 + 41_000),
                    "cost": { "usd": 0.41 } })
        };
        let agent = |name: &str, state: &str, busy: i64| json!({ "name": name, "role": "worker", "state": state, "busy": busy, "max_concurrent": 3, "waiting": 1 - busy });
        let board = |name: &str, done: i64| json!({ "name": name, "done": done, "of": 8, "ready": 2, "tasks": if done < 8 { json!({ "completed": done, "failed": 8 - done }) } else { json!({ "completed": done }) } });
        let stuck = |kind: &str, what: &[&str], why: &str| json!({ "kind": kind, "what": what, "title": hostile, "why": why, "next": "fence retry auth-1" });
        let view = json!({
            "fleet": "/home/kim/project/.fence/fence.db", "now": NOW,
            "agents": [agent("bob", "online", 1), agent("cy", "offline", 0)],
            "running": [work("bob-7f3a", "bob", "task/auth-3@2"), work("lock-1", "kim", "lock/deploy@9")],
            "boards": [board("auth", 3), board("done", 8), board("docs", 8), board("ops", 0), board("old", 8), board("web", 8)],
            "stuck": [
                stuck("failed", &["auth-1"], hostile),
                stuck("blocked", &["auth-2"], "waits for auth-1, which failed"),
                stuck("stranded", &["ops-1", "ops-2", "ops-3", "ops-4"], "only for agent cy, which is offline"),
            ],
            "more_stuck": true,
            "events": events,
        });
        serde_json::from_value(view).expect("a view")
    }

    fn empty() -> FleetView {
        FleetView {
            agents: vec![],
            running: vec![],
            boards: vec![],
            stuck: vec![],
            more_stuck: false,
            events: vec![],
            ..busy()
        }
    }

    fn drawn(view: &FleetView, look: &mut Look, (width, height): (u16, u16)) -> String {
        let mut terminal = ratatui::Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, view, look, NOW)).expect("drawn");
        let shown = terminal.backend().to_string();
        assert!(!shown.contains(|c| is_hidden(c) && c != '\n'), "{shown:?}");
        // The times of events are local.
        let zone = jiff::tz::TimeZone::system();
        let at = |n: i64| {
            jiff::Timestamp::from_millisecond(NOW.0 - 60_000 + n * 1000)
                .expect("a time")
                .to_zoned(zone.clone())
        };
        let shown = (0..20).fold(shown, |shown, n| {
            shown.replace(&at(n).strftime("%H:%M:%S").to_string(), &format!("12:00:{n:02}"))
        });
        format!("{width}x{height}\n{shown}")
    }

    const SIZES: [(u16, u16); 3] = [(100, 40), (60, 15), (40, 10)];

    #[test]
    fn the_view_fits_every_terminal() {
        let away =
            || Look { outage: Some("the fleet at http://x does not answer\x07".into()), ..Look::default() };
        let end = || Look { scrolled: usize::MAX / 2, ..Look::default() };
        for (name, view, look) in [
            ("busy", busy(), Look::default as fn() -> Look),
            ("away", busy(), away),
            ("end", busy(), end),
            ("empty", empty(), Look::default),
        ] {
            let shown = SIZES.map(|size| drawn(&view, &mut look(), size)).join("\n");
            insta::assert_snapshot!(format!("fleet_{name}"), shown);
            for size in [(1, 1), (2, 40), (200, 2), (20, 3), (9, 7)] {
                drawn(&view, &mut look(), size);
            }
        }
    }

    #[test]
    fn scrolling_stays_within_the_text() {
        let (view, mut look) = (busy(), Look::default());
        let top = drawn(&view, &mut look, (60, 15));
        assert!(!key(&mut look, Key::Up) && !key(&mut look, Key::Home));
        assert_eq!(drawn(&view, &mut look, (60, 15)), top);
        key(&mut look, Key::End);
        let bottom = drawn(&view, &mut look, (60, 15));
        assert_ne!(bottom, top);
        key(&mut look, Key::Down);
        assert_eq!(drawn(&view, &mut look, (60, 15)), bottom, "the end is the end");
        key(&mut look, Key::Up);
        assert_ne!(drawn(&view, &mut look, (60, 15)), bottom, "one key up moves at once");
        assert!(key(&mut look, Key::Char('q')));
    }

    #[test]
    fn a_bar_is_full_or_empty_only_if_the_board_is() {
        let of = |done, of| {
            let board = Board { name: String::new(), done, of, ready: 0, tasks: BTreeMap::new() };
            bar(&board, &Terminal::fixed(None))
        };
        assert_eq!([of(0, 9), of(1, 100), of(99, 100)], ["............", "#...........", "###########."]);
        assert_eq!([of(5, 10), of(7, 7), of(0, 0)], ["######......", "############", "############"]);
    }

    #[test]
    fn the_page_has_all_of_it() {
        let page = streams::rendered(&page(&busy(), &Terminal::fixed(None)));
        insta::assert_snapshot!(
            "fleet_page",
            page.lines().filter(|line| !line.contains("completed  task")).collect::<Vec<_>>().join("\n")
        );
    }
}
