//! The live view of `fence work`: the commands that run, and what became of the others.

use super::{
    screen::Key,
    text::{self, dollars, heading, lines, output, ticking},
};
use crate::output::{Terminal, table::CellLine, terminal::state, text::line};
use anstyle::Style;
use fencepost::{Millis, Time};
use ratatui::{Frame, buffer::Buffer, layout::Rect, style::Modifier, text::Line};
use unicode_width::UnicodeWidthStr;

/// All that the view shows. The caller fills it before each frame; `selected`, `log` and `help` are changed by [`key`], too.
#[derive(Debug, Default)]
pub struct WorkView {
    /// `fence work · bob, cy · fleet …`
    pub title: String,
    pub state: State,
    pub slots: Vec<Slot>,
    pub counters: Counters,
    pub spent_usd: Option<f64>,
    /// Tokens that all commands used; 0 is not shown.
    pub tokens: u64,
    /// The last events, newest last. The view shows as many as there is room for.
    pub notices: Vec<String>,
    /// The selected slot. The last one stands for any higher number.
    pub selected: usize,
    pub log: Option<LogPane>,
    /// Is the line with all keys shown?
    pub help: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum State {
    /// Some agents may be paused, as this text says.
    Working(String),
    /// All agents are paused: `paused until 14:00: usage limit`.
    Paused(String),
    /// The running commands are the last.
    Draining,
}

impl Default for State {
    fn default() -> Self {
        State::Working(String::new())
    }
}

/// A command that runs.
#[derive(Debug, Default)]
pub struct Slot {
    pub agent: String,
    pub run: String,
    /// `task_assigned`
    pub trigger: String,
    /// `auth-3 write the parser`
    pub what: String,
    /// How long it has run.
    pub since_ms: Millis,
    pub lease_left_ms: Millis,
    /// The last line of its output.
    pub last_line: String,
    /// Its cost so far: dollars, else tokens.
    pub usd: Option<f64>,
    pub tokens: u64,
    pub phase: Phase,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Starting,
    #[default]
    Running,
    /// It was told to end.
    Ending,
}

/// Commands of this process, by their end.
#[derive(Debug, Default)]
pub struct Counters {
    pub started: u64,
    pub done: u64,
    pub failed: u64,
    pub given_back: u64,
    /// Their claims were lost.
    pub lost: u64,
}

/// The output of one run.
#[derive(Debug, Default)]
pub struct LogPane {
    pub run: String,
    /// The newest lines, newest last.
    pub lines: Vec<String>,
    /// How many lines the pane is scrolled back from the newest.
    pub back: usize,
}

/// What a key asks the caller to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Pause,
    Resume,
    /// As TERM does: take no more work, and end when the running commands are over. If it drains already, end them.
    Drain,
    /// Fill `log` with the output of this run, and keep it up to date.
    OpenLog(String),
    /// `log` is `None` now.
    CloseLog,
}

/// Answers a key. It changes only what is shown.
pub fn key(view: &mut WorkView, key: Key) -> Option<Action> {
    match (key, &view.state) {
        (Key::Char('p'), State::Paused(_)) => return Some(Action::Resume),
        (Key::Char('p'), State::Working(_)) => return Some(Action::Pause),
        (Key::Char('d'), State::Draining) => return None,
        (Key::Char('d' | 'q'), _) => return Some(Action::Drain),
        (Key::Char('?'), _) => view.help = !view.help,
        _ => {}
    }
    if view.log.is_some() { log_key(view, key) } else { slot_key(view, key) }
}

fn slot_key(view: &mut WorkView, key: Key) -> Option<Action> {
    let last = view.slots.len().saturating_sub(1);
    view.selected = view.selected.min(last);
    match key {
        Key::Up => view.selected = view.selected.saturating_sub(1),
        Key::Down => view.selected = (view.selected + 1).min(last),
        Key::Home => view.selected = 0,
        Key::End => view.selected = last,
        Key::Enter | Key::Char('l') => {
            return view.slots.get(view.selected).map(|slot| Action::OpenLog(slot.run.clone()));
        }
        _ => {}
    }
    None
}

fn log_key(view: &mut WorkView, key: Key) -> Option<Action> {
    let log = view.log.as_mut()?;
    let most = log.lines.len().saturating_sub(1);
    match key {
        Key::Esc | Key::Enter | Key::Char('l') => {
            view.log = None;
            return Some(Action::CloseLog);
        }
        Key::Up => log.back = (log.back + 1).min(most),
        Key::PageUp => log.back = (log.back + 10).min(most),
        Key::Home => log.back = most,
        Key::Down => log.back = log.back.saturating_sub(1),
        Key::PageDown => log.back = log.back.saturating_sub(10),
        Key::End => log.back = 0,
        Key::Char(_) => {}
    }
    None
}

/// Draws the view.
pub fn draw(frame: &mut Frame, view: &WorkView) {
    let area = frame.area();
    let terminal = Terminal::of_view(area.width, Time(0));
    let head = lines(&[title(view, &terminal), counters(view, &terminal)].join("\n"));
    let foot = lines(&keys(view, &terminal));
    let [head_area, body, foot_area] = split(area, head.len(), foot.len());
    let buffer = frame.buffer_mut();
    text::draw(&head, head_area, buffer);
    text::draw(&foot, foot_area, buffer);
    match &view.log {
        Some(log) => draw_log(log, &terminal, body, buffer),
        None => draw_slots(view, &terminal, body, buffer),
    }
}

/// Splits off the lines at the top and at the bottom; on a very low terminal the bottom goes first.
fn split(area: Rect, head: usize, foot: usize) -> [Rect; 3] {
    let clamp = |lines: usize, room: u16| u16::try_from(lines).unwrap_or(room).min(room);
    let head = clamp(head, area.height);
    let foot = clamp(foot, area.height - head);
    let body = area.height - head - foot;
    let part = |y: u16, height: u16| Rect { y: area.y + y, height, ..area };
    [part(0, head), part(head, body), part(head + body, foot)]
}

/// `fence work · bob …` and the state.
fn title(view: &WorkView, terminal: &Terminal) -> String {
    let (word, why) = match &view.state {
        State::Working(some_paused) => ("working", some_paused.as_str()),
        State::Paused(until) => (until.as_str(), ""),
        State::Draining => ("draining", "no new work is taken"),
    };
    let style = state(if matches!(view.state, State::Working(_)) { "ok" } else { "warning" });
    let mut line = CellLine::new(terminal);
    line.cell(&self::line(word), 0, style.bold());
    line.cell(&self::line(why), 0, state("warning"));
    line.cell(&self::line(&view.title), 0, Style::new().bold());
    line.finish()
}

/// `12 started  9 done  1 failed  …  $1.23  45.2k tokens`
fn counters(view: &WorkView, terminal: &Terminal) -> String {
    let Counters { started, done, failed, given_back, lost } = &view.counters;
    let mut line = CellLine::new(terminal);
    line.cell(&format!("{started} started"), 0, Style::new());
    line.cell(&format!("{done} done"), 0, if *done > 0 { state("ok") } else { Style::new() });
    // The others are the exception, and a zero would only take room.
    let rest = [(failed, "failed", state("failed")), (lost, "lost", state("failed"))];
    for (count, word, style) in rest.into_iter().chain([(given_back, "given back", Style::new())]) {
        if *count > 0 {
            line.cell(&format!("{count} {word}"), 0, style);
        }
    }
    line.cell(&view.spent_usd.map_or(String::new(), dollars), 0, Style::new());
    if view.tokens > 0 {
        line.cell(&format!("{} tokens", thousands(view.tokens)), 0, Style::new());
    }
    line.finish()
}

/// The line of keys.
fn keys(view: &WorkView, terminal: &Terminal) -> String {
    let pause = if matches!(view.state, State::Paused(_)) { "p resume" } else { "p pause" };
    let keys = match (&view.log, view.help) {
        (Some(_), _) => vec!["esc close", "up/down scroll", "end newest", "q drain and end"],
        (None, false) => vec!["l log", pause, "d drain", "q quit", "? help"],
        (None, true) => vec![
            "up/down select a run",
            "enter or l open its output",
            if pause == "p resume" { "p take new work again" } else { "p take no new work until p" },
            "d or q take no new work and end when all runs are over",
            "q or Ctrl-C again end them now",
            "? hide this",
        ],
    };
    match view.help && view.log.is_none() {
        true => keys.iter().map(|key| terminal.dim(&terminal.fit(key, ""))).collect::<Vec<_>>().join("\n"),
        false => terminal.dim(&terminal.fit(&keys.join(" · "), "")),
    }
}

fn draw_log(log: &LogPane, terminal: &Terminal, area: Rect, buffer: &mut Buffer) {
    let back = match log.back {
        0 => String::new(),
        lines => format!(", {lines} lines back"),
    };
    let room = usize::from(area.height).saturating_sub(1);
    let end = log.lines.len().saturating_sub(log.back);
    let shown = &log.lines[end.saturating_sub(room)..end];
    let text = shown.iter().map(|text| terminal.fit(&output(text), ""));
    let text = std::iter::once(heading(&format!("output of {}{back}", line(&log.run)), terminal)).chain(text);
    text::draw(&lines(&text.collect::<Vec<_>>().join("\n")), area, buffer);
}

/// The slots, and the notices in the room below them. Each slot has a line and its last output below; if there is no room for
/// that, only the selected slot has both.
fn draw_slots(view: &WorkView, terminal: &Terminal, area: Rect, buffer: &mut Buffer) {
    let selected = view.selected.min(view.slots.len().saturating_sub(1));
    let room = usize::from(area.height);
    let is_low = 2 * view.slots.len() > room;
    let widths = Widths::of(&view.slots, terminal);
    // The lines, and the first one of the selected slot.
    let (mut all, mut first): (Vec<Line<'static>>, usize) = (Vec::new(), 0);
    for (at, slot) in view.slots.iter().enumerate() {
        let mut text = widths.line(slot, terminal);
        if at == selected || !is_low {
            text = text + "\n" + &output_line(slot, terminal);
        }
        let mut slot_lines = lines(&text);
        if at == selected {
            first = all.len();
            for span in &mut slot_lines[0].spans {
                span.style = span.style.add_modifier(Modifier::REVERSED);
            }
        }
        all.extend(slot_lines);
    }
    if view.slots.is_empty() {
        all = lines(&terminal.dim(&terminal.fit("nothing runs now", "")));
    }
    let hidden = (first + 2).saturating_sub(room).min(all.len());
    // A heading, if it takes no room from a run.
    if !view.slots.is_empty() && all.len() + 4 < room {
        all.splice(..0, lines(&heading(&format!("{} running", view.slots.len()), terminal)));
    }
    text::draw(&all[hidden..], area, buffer);
    let used = u16::try_from(all.len() - hidden).unwrap_or(area.height).min(area.height);
    let below = Rect { y: area.y + used, height: area.height - used, ..area };
    if below.height > 1 && !view.notices.is_empty() {
        let shown = view.notices.len().min(usize::from(below.height) - 1);
        let newest = &view.notices[view.notices.len() - shown..];
        let text = newest.iter().map(|notice| terminal.fit(notice, ""));
        let text = std::iter::once(heading("what happened", terminal)).chain(text);
        text::draw(&lines(&text.collect::<Vec<_>>().join("\n")), below, buffer);
    }
}

/// The columns of the slots, as wide as their widest cells and in bounds of a share of the terminal.
struct Widths {
    agent: usize,
    trigger: usize,
    what: usize,
}

impl Widths {
    fn of(slots: &[Slot], terminal: &Terminal) -> Self {
        let width = terminal.width().unwrap_or(80);
        let widest =
            |of: fn(&Slot) -> &str| slots.iter().map(|slot| line(of(slot)).width()).max().unwrap_or(0);
        let agent = widest(|slot| &slot.agent).min(width / 4);
        // The name of the trigger says little that the work does not, so a narrow terminal is without it.
        let trigger = if width < 70 { 0 } else { widest(|slot| &slot.trigger).min(width / 6) };
        let gap = |width: usize| if width > 0 { width + 2 } else { 0 };
        let times = if width < 50 { 8 } else { 7 + 13 + 12 };
        let rest = width.saturating_sub(gap(agent) + gap(trigger) + times + 1);
        Self { agent, trigger, what: rest }
    }

    /// `bob  task_assigned  auth-3 write the parser  2m03s  lease 41s  $0.41`
    fn line(&self, slot: &Slot, terminal: &Terminal) -> String {
        let mut cells = CellLine::new(terminal);
        cells.cut_cell(&line(&slot.agent), self.agent, Style::new().bold());
        if self.trigger > 0 {
            cells.cut_cell(&line(&slot.trigger), self.trigger, Style::new().dimmed());
        }
        cells.cut_cell(&line(&slot.what), self.what, Style::new());
        cells.cell(&format!("{:>6}", ticking(slot.since_ms)), 6, Style::new());
        if terminal.width().is_some_and(|width| width >= 50) {
            let is_short = slot.lease_left_ms <= Millis::seconds(15);
            let style = if is_short { state("warning") } else { Style::new().dimmed() };
            cells.cell(&format!("lease {}", ticking(slot.lease_left_ms)), 12, style);
            let cost = match (slot.usd, slot.tokens) {
                (Some(usd), _) => dollars(usd),
                (None, 0) => String::new(),
                (None, tokens) => format!("{} tok", thousands(tokens)),
            };
            cells.cell(&cost, 10, Style::new());
        }
        cells.finish()
    }
}

/// `  r-7f3a: the last line of its output`
fn output_line(slot: &Slot, terminal: &Terminal) -> String {
    let mut cells = CellLine::new(terminal);
    cells.prefix("  ", Style::new());
    match slot.phase {
        Phase::Starting => cells.prefix("starting ", state("pending")),
        Phase::Running => {}
        Phase::Ending => cells.prefix("ending ", state("warning")),
    }
    cells.prefix(&format!("{}: ", line(&slot.run)), Style::new().dimmed());
    let last = output(&slot.last_line);
    let (last, style) = if last.trim().is_empty() {
        ("no output yet", Style::new().dimmed())
    } else {
        (last.trim(), Style::new())
    };
    cells.cell(last, 0, style);
    cells.finish()
}

/// `870`, `45.2k`, `1.2M`
fn thousands(count: u64) -> String {
    // Precise enough for three digits.
    let of = |unit: f64| count as f64 / unit;
    match count {
        0..1000 => count.to_string(),
        1000..999_950 => format!("{:.1}k", of(1e3)),
        _ => format!("{:.1}M", of(1e6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::{backend::TestBackend, layout::Size};

    fn slot(agent: &str, what: &str) -> Slot {
        Slot {
            agent: agent.into(),
            run: format!("{agent}-7f3a"),
            trigger: "task_assigned".into(),
            what: what.into(),
            since_ms: Millis(123_456),
            lease_left_ms: Millis(41_000),
            last_line: "   Compiling fencepost v0.1.0".into(),
            usd: Some(0.41),
            tokens: 0,
            phase: Phase::Running,
        }
    }

    fn busy() -> WorkView {
        WorkView {
            title: "fence work · bob, cy · fleet .fence/fleet.db".into(),
            slots: vec![
                slot("bob", "auth-3 write the parser for every kind of token that there is"),
                Slot {
                    trigger: "unread_mentions".into(),
                    since_ms: Millis(3_000),
                    lease_left_ms: Millis(9_000),
                    last_line: String::new(),
                    usd: None,
                    phase: Phase::Starting,
                    ..slot("cy", "mentions in general \x1b[2J\u{202e}構文\nfence: forged")
                },
                Slot {
                    phase: Phase::Ending,
                    usd: None,
                    tokens: 45_230,
                    ..slot("a-worker-with-a-long-name", "main-12 x")
                },
            ],
            counters: Counters { started: 12, done: 8, failed: 1, given_back: 2, lost: 1 },
            spent_usd: Some(3.2),
            tokens: 45_230,
            notices: (1..30).map(|n| format!("12:04:{n:02} auth-{n} completed by bob\x07")).collect(),
            selected: 1,
            ..WorkView::default()
        }
    }

    fn drawn(view: &WorkView, (width, height): (u16, u16)) -> String {
        let mut terminal = ratatui::Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, view)).expect("drawn");
        assert_eq!(terminal.size().expect("its size"), Size::new(width, height));
        let shown = terminal.backend().to_string();
        assert!(!shown.contains(|c| crate::output::untrusted::is_hidden(c) && c != '\n'), "{shown:?}");
        format!("{width}x{height}\n{shown}")
    }

    const SIZES: [(u16, u16); 3] = [(100, 30), (60, 15), (40, 10)];

    #[test]
    fn the_view_fits_every_terminal() {
        let with_help =
            WorkView { state: State::Paused("paused until 14:00: usage limit".into()), help: true, ..busy() };
        let log = LogPane {
            run: "bob-7f3a".into(),
            lines: (1..50).map(|n| format!("\x1b[31mline {n}\x1b[0m of the output\x1b[2J")).collect(),
            back: 3,
        };
        let with_log = WorkView { state: State::Draining, log: Some(log), ..busy() };
        let idle = WorkView { slots: vec![], state: State::Paused("paused: release day".into()), ..busy() };
        for (name, view) in [("busy", busy()), ("help", with_help), ("log", with_log), ("idle", idle)] {
            let shown = SIZES.map(|size| drawn(&view, size)).join("\n");
            insta::assert_snapshot!(format!("work_{name}"), shown);
            for size in [(1, 1), (2, 40), (200, 2), (20, 3)] {
                drawn(&view, size);
            }
        }
    }

    /// With more runs than lines, the selected one is always shown, with its output.
    #[test]
    fn the_selected_run_is_always_visible() {
        let mut view = busy();
        view.slots = (1..=40).map(|n| slot(&format!("w{n}"), "x")).collect();
        for selected in [0, 20, 39, 100] {
            view.selected = selected;
            for size in SIZES {
                let shown = drawn(&view, size);
                let agent = format!("w{}", selected.min(39) + 1);
                let name = format!("{agent}-7f3a: Compiling");
                assert!(shown.contains(&name), "{selected}: {shown}");
            }
        }
    }

    #[test]
    fn keys_select_scroll_and_ask() {
        let mut view = busy();
        let steps = [
            (Key::Up, None),
            (Key::Up, None),
            (Key::Enter, Some(Action::OpenLog("bob-7f3a".into()))),
            (Key::Down, None),
            (Key::Down, None),
            (Key::Down, None),
            (Key::Char('l'), Some(Action::OpenLog("a-worker-with-a-long-name-7f3a".into()))),
            (Key::Char('p'), Some(Action::Pause)),
            (Key::Char('d'), Some(Action::Drain)),
            (Key::Char('x'), None),
            (Key::Esc, None),
        ];
        for (pressed, asks) in steps {
            assert_eq!(key(&mut view, pressed), asks, "{pressed:?}");
        }
        view.state = State::Paused(String::new());
        assert_eq!(key(&mut view, Key::Char('p')), Some(Action::Resume));
        view.state = State::Draining;
        assert_eq!(key(&mut view, Key::Char('p')), None);
        assert_eq!(key(&mut view, Key::Char('d')), None);
        assert_eq!(key(&mut view, Key::Char('q')), Some(Action::Drain), "the second one ends the commands");
        view.log = Some(LogPane { lines: vec!["a".into(), "b".into()], ..LogPane::default() });
        assert_eq!(key(&mut view, Key::Up), None);
        assert_eq!(key(&mut view, Key::Up), None);
        assert_eq!((view.selected, view.log.as_ref().map(|log| log.back)), (2, Some(1)));
        assert_eq!(key(&mut view, Key::Esc), Some(Action::CloseLog));
        assert!(view.log.is_none());
        view.slots.clear();
        assert_eq!((key(&mut view, Key::Enter), view.selected), (None, 0));
        assert_eq!(key(&mut view, Key::Char('?')), None);
        assert!(view.help);
    }

    #[test]
    fn tokens_are_short() {
        assert_eq!([999, 1000, 999_949, 999_950].map(thousands), ["999", "1.0k", "999.9k", "1.0M"]);
    }
}
