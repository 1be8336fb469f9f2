//! Events in words: what `fence log` tells of one task, and `fence events` of all that happens.

use crate::screen::{Screen, Strip, line, state};
use anstyle::Style;
use fencepost::{Millis, Time, event::Entry};
use jiff::{Timestamp, civil::Date, tz::TimeZone};
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

/// What happened: `completed`, of `task.completed`; `clock set`, of `fleet.clock_set`. The resource says to what.
pub fn word(event: &Entry) -> String {
    verb(event).replace('_', " ")
}

/// The same as programs know it.
pub fn verb(event: &Entry) -> &str {
    event.kind.split_once('.').map_or(&event.kind, |(_, verb)| verb)
}

/// By what happened, or else by the state to which it led.
fn style(event: &Entry) -> Style {
    let own = match verb(event) {
        // The state after it is one of hope; what happened is a failure.
        "retrying" | "unclaimed" | "undelivered" | "doubted" | "revoked" => state("failed"),
        verb => state(verb),
    };
    let after = || event.to.as_deref().map_or(own, state);
    if own == Style::new() { after() } else { own }
}

/// `in_progress -> unassigned`
pub fn states(event: &Entry) -> Option<String> {
    match (&event.from, &event.to) {
        (Some(from), Some(to)) if from != to => Some(format!("{from} -> {to}")),
        _ => None,
    }
}

/// The event's details in words: `reason: the network is down`, `attempt: 1`, …
pub fn details(event: &Entry) -> Vec<String> {
    let pairs = event.details.iter().filter_map(Value::as_object).flatten();
    // The resource is told already.
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

/// A value without the signs of JSON, where it can do without.
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

/// Done to a task by anybody, whoever holds it: the event's run is the holder's.
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

/// Who did it, or to whose claim it happened: `me (agent kim)`.
fn by(event: &Entry) -> String {
    // The event of a run names it as its resource.
    let is_told = |run: &&String| event.resource.strip_prefix("run/") != Some(run.as_str());
    let is_holders = !BY_ANYONE.contains(&verb(event));
    match (event.run.as_ref().filter(is_told).filter(|_| is_holders), &event.agent) {
        (Some(run), Some(agent)) => format!("{run} (agent {agent})"),
        (Some(run), None) => run.clone(),
        (None, Some(agent)) => format!("agent {agent}"),
        (None, None) => String::new(),
    }
}

/// `task/auth-3@2`: under a fence it is the claim's token.
fn token(event: &Entry) -> String {
    event.fence.map_or_else(|| event.resource.clone(), |fence| format!("{}@{fence}", event.resource))
}

/// Events as lines for people: local time, what happened, to what, its title, by whom, and the details. The columns are
/// as wide as the first events need, within bounds, and stay so for all that follow. A longer resource pushes the rest of
/// its line along: it is what a person types next.
#[derive(Debug)]
pub struct View {
    screen: Screen,
    zone: TimeZone,
    /// The day of the line before. It begins with today, which needs no word.
    day: Option<Date>,
    widths: [usize; 4],
}

/// Of what happened, the resource, the title and who did it: the least where more is to come, and the most.
const LEAST: [usize; 4] = [9, 14, 16, 10];
const MOST: [usize; 4] = [11, 24, 40, 28];

impl View {
    /// For these events and no others.
    pub fn of(events: &[Entry], screen: &Screen) -> Self {
        Self::with(events, [0; 4], screen)
    }

    /// For these, and for those that follow.
    pub fn following(events: &[Entry], screen: &Screen) -> Self {
        Self::with(events, LEAST, screen)
    }

    fn with(events: &[Entry], least: [usize; 4], screen: &Screen) -> Self {
        let mut widths = least;
        // A narrow terminal has room for short resources; others push the rest along.
        let resource = screen.width().map_or(MOST[1], |width| (width / 4).clamp(LEAST[1], MOST[1]));
        for event in events {
            for (at, cell) in cells(event).iter().enumerate() {
                // A resource is not cut, so one that does not fit need not widen the column.
                if at != 1 || cell.width() <= resource {
                    widths[at] = widths[at].max(cell.width());
                }
            }
        }
        widths.iter_mut().zip(MOST).for_each(|(width, most)| *width = (*width).min(most));
        if let Some(width) = screen.width() {
            // What the time, what happened and the resource leave: two fifths for the title, a quarter for who did it.
            let rest = width.saturating_sub(8 + widths[0] + widths[1] + 6);
            widths[2] = widths[2].min((rest * 2 / 5).max(12));
            widths[3] = widths[3].min((rest / 4).max(12));
        }
        let zone = TimeZone::system();
        let day = day(screen.now(), &zone);
        Self { screen: *screen, zone, day, widths }
    }

    /// All of them.
    pub fn page(mut self, events: &[Entry]) -> String {
        events.iter().map(|event| self.line(event)).collect::<Vec<_>>().join("\n")
    }

    /// One event; a line before it names the day, if it is another than that of the event before.
    pub fn line(&mut self, event: &Entry) -> String {
        let at = Timestamp::from_millisecond(event.at.0).unwrap_or_default().to_zoned(self.zone.clone());
        let mut text = String::new();
        if self.day != Some(at.date()) {
            self.day = Some(at.date());
            text = self.screen.dim(&self.screen.fit(&at.strftime("%A %Y-%m-%d").to_string(), "")) + "\n";
        }
        let mut strip = Strip::new(&self.screen);
        strip.cell(&at.strftime("%H:%M:%S").to_string(), 8, Style::new().dimmed());
        let [word, token, title, by] = cells(event);
        let [word_width, token_width, title_width, by_width] = self.widths;
        strip.cell(&word, word_width, style(event));
        // A resource is what a person types next: it is not cut as long as it fits on a line of its own.
        if self.screen.width().is_some_and(|width| 8 + 2 + word_width + 2 + token.width() > width) {
            text = text + &strip.line() + "\n";
            strip = Strip::new(&self.screen);
            strip.lead("    ", Style::new());
        }
        strip.cell(&token, token_width, Style::new());
        strip.cut_cell(&title, title_width, Style::new());
        strip.cut_cell(&by, by_width, Style::new().dimmed());
        // The states last: what happened mostly says them.
        let details: Vec<String> = details(event).into_iter().chain(states(event)).collect();
        strip.cell(&details.join(", "), 0, Style::new());
        text + &strip.line()
    }
}

fn cells(event: &Entry) -> [String; 4] {
    [word(event), token(event), event.title.clone().unwrap_or_default(), by(event)].map(|text| line(&text))
}

/// `12:04:10`, where the reader is.
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
    fn details_are_told_in_words() {
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
    fn the_holder_is_named_only_for_what_a_holder_does() {
        let of = |kind: &str, resource: &str, agent: Option<&str>| {
            let (run, agent) = (Some("r".into()), agent.map(str::to_owned));
            by(&Entry { run, agent, resource: resource.into(), ..event(kind, Value::Null) })
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
    fn what_others_wrote_is_one_safe_line() {
        let screen = Screen::of_stdout(Time(0));
        let hostile = "x\x1b[2J\u{202e}\nerror: forged";
        let event = Entry {
            title: Some(hostile.into()),
            run: Some(hostile.into()),
            agent: Some(hostile.into()),
            ..event("task.failed", json!({ hostile: hostile, "list": [hostile], "deep": { "x": hostile } }))
        };
        let line = crate::out::rendered(&View::of(std::slice::from_ref(&event), &screen).line(&event));
        assert!(line.lines().all(|line| !line.starts_with("error")), "{line}");
        assert_eq!(line.matches("\\u{1b}[2J\\u{202e} error: forged").count(), 6, "{line}");
        assert!(!line.contains(['\x1b', '\u{202e}']), "{line}");
    }

    #[test]
    fn colours_are_by_what_happened_and_else_by_what_it_led_to() {
        let led_to = |kind: &str, to: &str| style(&Entry { to: Some(to.into()), ..event(kind, Value::Null) });
        assert_eq!(led_to("task.completed", "completed"), state("completed"));
        assert_eq!(led_to("task.lapsed", "unassigned"), state("lapsed"));
        assert_eq!(led_to("task.retrying", "unassigned"), state("failed"));
        assert_eq!(led_to("task.claimed", "in_progress"), state("in_progress"));
        assert_eq!(led_to("task.added", "unassigned"), state("unassigned"));
    }
}
