//! Events described in words: for `fence log`, the events of one task; for `fence events`, those of the fleet.

use super::{Terminal, table::CellLine, terminal::state, text::line};
use anstyle::Style;
use fencepost::{Millis, Time, event::Entry};
use jiff::{Timestamp, civil::Date, tz::TimeZone};
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

/// The verb of an event in words: `completed` for `task.completed`, `clock set` for `fleet.clock_set`.
pub fn word(event: &Entry) -> String {
    verb(event).replace('_', " ")
}

/// The verb as programs know it: `clock_set`.
pub fn verb(event: &Entry) -> &str {
    event.kind.split_once('.').map_or(&event.kind, |(_, verb)| verb)
}

/// The colour of the verb, or else of the new state.
fn style(event: &Entry) -> Style {
    let of_verb = match verb(event) {
        // The new state is one that can still succeed, but the event is a failure.
        "retrying" | "unclaimed" | "undelivered" | "doubted" | "revoked" => state("failed"),
        verb => state(verb),
    };
    let after = || event.to.as_deref().map_or(of_verb, state);
    if of_verb == Style::new() { after() } else { of_verb }
}

/// `in_progress -> unassigned`
pub fn states(event: &Entry) -> Option<String> {
    match (&event.from, &event.to) {
        (Some(from), Some(to)) if from != to => Some(format!("{from} -> {to}")),
        _ => None,
    }
}

/// The details of an event in words: `reason: the network is down`, `attempt: 1`, …
pub fn details(event: &Entry) -> Vec<String> {
    let pairs = event.details.iter().filter_map(Value::as_object).flatten();
    // The line shows the resource already.
    let id = event.resource.split_once('/').map(|(_, id)| id);
    let pairs = pairs.filter(|(_, value)| value.as_str().is_none_or(|text| Some(text) != id));
    let pairs = pairs.filter_map(|(name, value)| {
        let name = line(name);
        let (name, value) = match (name.strip_suffix("_ms"), value.as_i64()) {
            (Some(name), Some(span)) => (name, Some(Millis(span).to_string())),
            _ => (name.as_str(), in_words(value)),
        };
        Some(format!("{}: {}", name.replace('_', " "), value?))
    });
    let other = event.details.as_ref().filter(|details| !details.is_object()).and_then(in_words);
    pairs.chain(other).collect()
}

/// A value without the syntax of JSON, if it is simple.
fn in_words(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Bool(yes) => Some(if *yes { "yes" } else { "no" }.into()),
        Value::String(text) => Some(line(text)),
        Value::Array(items) if !items.iter().any(|item| item.is_object() || item.is_array()) => {
            let items: Vec<String> = items.iter().filter_map(in_words).collect();
            (!items.is_empty()).then(|| items.join(", "))
        }
        Value::Array(items) if items.is_empty() => None,
        other => Some(line(&other.to_string())),
    }
}

/// Verbs that anybody may use on a task. The run of such an event is the holder's, and the actor may be somebody else.
const BY_ANYONE: [&str; 13] = [
    "assigned",
    "cancelled",
    "depends",
    "edited",
    "freed",
    "noted",
    "offered",
    "parked",
    "reopened",
    "retried",
    "unblocked",
    "unclaimed",
    "unparked",
];

/// The actor, or the holder of the claim: `me (agent kim)`.
fn actor(event: &Entry) -> String {
    // The event of a run has the run as its resource.
    let is_not_resource = |run: &&String| event.resource.strip_prefix("run/") != Some(run.as_str());
    let by_holder = !BY_ANYONE.contains(&verb(event));
    match (event.run.as_ref().filter(is_not_resource).filter(|_| by_holder), &event.agent) {
        (Some(run), Some(agent)) => format!("{run} (agent {agent})"),
        (Some(run), None) => run.clone(),
        (None, Some(agent)) => format!("agent {agent}"),
        (None, None) => String::new(),
    }
}

/// The resource; with a fence, the claim's token: `task/auth-3@2`.
fn token(event: &Entry) -> String {
    event.fence.map_or_else(|| event.resource.clone(), |fence| format!("{}@{fence}", event.resource))
}

/// Events as lines for people: local time, verb, resource, title, actor and details. The first events decide the widths of the
/// columns, within bounds, and later events keep them. A longer resource moves the rest of its line to the right: it is what a
/// person types next.
#[derive(Debug)]
pub struct EventLines {
    terminal: Terminal,
    zone: TimeZone,
    /// The day of the previous line. It begins with today, which needs no heading.
    day: Option<Date>,
    widths: [usize; 4],
}

/// The widths of verb, resource, title and actor: the least if more events may follow, and the most.
const LEAST: [usize; 4] = [9, 14, 16, 10];
const MOST: [usize; 4] = [11, 24, 40, 28];

impl EventLines {
    /// For exactly these events.
    pub fn of(events: &[Entry], terminal: &Terminal) -> Self {
        Self::with(events, [0; 4], terminal)
    }

    /// For these events and later ones.
    pub fn following(events: &[Entry], terminal: &Terminal) -> Self {
        Self::with(events, LEAST, terminal)
    }

    fn with(events: &[Entry], least: [usize; 4], terminal: &Terminal) -> Self {
        let mut widths = least;
        // A narrow terminal has room for short resources only; longer ones move the rest of their line.
        let resource = terminal.width().map_or(MOST[1], |width| (width / 4).clamp(LEAST[1], MOST[1]));
        for event in events {
            for (at, cell) in cells(event).iter().enumerate() {
                // A resource is not cut, so one that does not fit does not widen the column.
                if at != 1 || cell.width() <= resource {
                    widths[at] = widths[at].max(cell.width());
                }
            }
        }
        widths.iter_mut().zip(MOST).for_each(|(width, most)| *width = (*width).min(most));
        if let Some(width) = terminal.width() {
            // Of the columns that time, verb and resource leave, the title gets two fifths and the actor a quarter.
            let rest = width.saturating_sub(8 + widths[0] + widths[1] + 6);
            widths[2] = widths[2].min((rest * 2 / 5).max(12));
            widths[3] = widths[3].min((rest / 4).max(12));
        }
        let zone = TimeZone::system();
        let day = day(terminal.now(), &zone);
        Self { terminal: *terminal, zone, day, widths }
    }

    /// The lines of all these events.
    pub fn page(mut self, events: &[Entry]) -> String {
        events.iter().map(|event| self.line(event)).collect::<Vec<_>>().join("\n")
    }

    /// The line of one event, after a heading if the day is another than that of the previous event.
    pub fn line(&mut self, event: &Entry) -> String {
        let at = Timestamp::from_millisecond(event.at.0).unwrap_or_default().to_zoned(self.zone.clone());
        let mut text = String::new();
        if self.day != Some(at.date()) {
            self.day = Some(at.date());
            text = self.terminal.dim(&self.terminal.fit(&at.strftime("%A %Y-%m-%d").to_string(), "")) + "\n";
        }
        let mut line = CellLine::new(&self.terminal);
        line.cell(&at.strftime("%H:%M:%S").to_string(), 8, Style::new().dimmed());
        let [word, token, title, actor] = cells(event);
        let [word_width, token_width, title_width, actor_width] = self.widths;
        line.cell(&word, word_width, style(event));
        // A person types the resource next, so it is not cut if it fits on a line of its own.
        if self.terminal.width().is_some_and(|width| 8 + 2 + word_width + 2 + token.width() > width) {
            text = text + &line.finish() + "\n";
            line = CellLine::new(&self.terminal);
            line.prefix("    ", Style::new());
        }
        line.cell(&token, token_width, Style::new());
        line.cut_cell(&title, title_width, Style::new());
        line.cut_cell(&actor, actor_width, Style::new().dimmed());
        // The states come last: mostly the verb says as much.
        let details: Vec<String> = details(event).into_iter().chain(states(event)).collect();
        line.cell(&details.join(", "), 0, Style::new());
        text + &line.finish()
    }
}

fn cells(event: &Entry) -> [String; 4] {
    [word(event), token(event), event.title.clone().unwrap_or_default(), actor(event)].map(|text| line(&text))
}

/// `12:04:10`, in local time.
pub fn time_of_day(at: Time) -> String {
    let at = Timestamp::from_millisecond(at.0).unwrap_or_default().to_zoned(TimeZone::system());
    at.strftime("%H:%M:%S").to_string()
}

fn day(at: Time, zone: &TimeZone) -> Option<Date> {
    Some(Timestamp::from_millisecond(at.0).ok()?.to_zoned(zone.clone()).date())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::streams;
    use serde_json::json;

    fn event(kind: &str, details: Value) -> Entry {
        Entry {
            position: String::new(),
            at: Time(0),
            kind: kind.into(),
            resource: "task/a-1".into(),
            from: None,
            to: None,
            run: None,
            agent: None,
            fence: None,
            title: None,
            details: Some(details),
        }
    }

    #[test]
    fn details_are_described_in_words() {
        for (json, says) in [
            (json!({ "reason": "it\nhangs", "key": null, "attempt": 2 }), "reason: it hangs, attempt: 2"),
            (
                json!({ "ttl_ms": 300_000, "in_order": true, "done_when": "x" }),
                "ttl: 5m, in order: yes, done when: x",
            ),
            (json!({ "fields": ["title", "tags"], "mentions": [] }), "fields: title, tags"),
            (json!({ "rule": { "text": "x" } }), "rule: {\"text\":\"x\"}"),
            (json!({}), ""),
            (json!("by hand"), "by hand"),
        ] {
            assert_eq!(details(&event("task.edited", json.clone())).join(", "), says, "{json}");
        }
        let moved = Entry {
            from: Some("pending".into()),
            to: Some("failed".into()),
            ..event("x.y", json!({ "n": 1 }))
        };
        assert_eq!(
            (states(&moved), details(&moved)),
            (Some("pending -> failed".into()), vec!["n: 1".into()])
        );
        assert_eq!(word(&event("fleet.clock_set", json!({}))), "clock set");
        assert_eq!(word(&event("unheard", json!({}))), "unheard");
    }

    #[test]
    fn the_holder_is_named_only_for_verbs_of_a_holder() {
        let of = |kind: &str, resource: &str, agent: Option<&str>| {
            let (run, agent) = (Some("r".into()), agent.map(str::to_owned));
            actor(&Entry { run, agent, resource: resource.into(), ..event(kind, Value::Null) })
        };
        for (kind, resource, agent, says) in [
            ("task.claimed", "task/a-1", None, "r"),
            ("task.completed", "task/a-1", Some("kim"), "r (agent kim)"),
            ("task.lapsed", "task/a-1", None, "r"),
            ("task.edited", "task/a-1", Some("sam"), "agent sam"),
            ("task.noted", "task/a-1", None, ""),
            ("run.ended", "run/r", Some("kim"), "agent kim"),
        ] {
            assert_eq!(of(kind, resource, agent), says, "{kind}");
        }
    }

    #[test]
    fn untrusted_text_is_one_safe_line() {
        let terminal = Terminal::of_stdout(Time(0));
        let hostile = "x\x1b[2J\u{202e}\nerror: forged";
        let event = Entry {
            title: Some(hostile.into()),
            run: Some(hostile.into()),
            agent: Some(hostile.into()),
            ..event("task.failed", json!({ hostile: hostile, "list": [hostile], "deep": { "x": hostile } }))
        };
        let line = streams::rendered(&EventLines::of(std::slice::from_ref(&event), &terminal).line(&event));
        assert!(line.lines().all(|line| !line.starts_with("error")), "{line}");
        assert_eq!(line.matches("\\u{1b}[2J\\u{202e} error: forged").count(), 6, "{line}");
        assert!(!line.contains(['\x1b', '\u{202e}']), "{line}");
    }

    #[test]
    fn colours_follow_the_verb_and_else_the_new_state() {
        let led_to = |kind: &str, to: &str| style(&Entry { to: Some(to.into()), ..event(kind, Value::Null) });
        assert_eq!(led_to("task.completed", "completed"), state("completed"));
        assert_eq!(led_to("task.lapsed", "unassigned"), state("lapsed"));
        assert_eq!(led_to("task.retrying", "unassigned"), state("failed"));
        assert_eq!(led_to("task.claimed", "in_progress"), state("in_progress"));
        assert_eq!(led_to("task.added", "unassigned"), state("unassigned"));
    }
}
