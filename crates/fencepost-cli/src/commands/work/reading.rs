//! Reading a client's output: the session, the result, the cost, and whether it cannot work now.

use super::profile::{Profile, Read, Stop, StopKind, Where};
use fencepost::{Millis, Time};
use jiff::{Zoned, civil};
use serde_json::{Value, json};

/// A longer line is no message of a client, and is not kept in memory.
const LINE_MAX: usize = 4 * 1024 * 1024;

/// The highest cost that `run/settle` accepts.
const USD_MAX: f64 = 1e6;
const TOKENS_MAX: f64 = 1e12;

/// Removes the noise of sums such as 0.1 + 0.2.
fn to_millionth(usd: f64) -> f64 {
    (usd * 1e6).round() / 1e6
}

/// The facts that the output told so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    pub session: Option<String>,
    pub result: Option<String>,
    pub usd: Option<f64>,
    pub tokens_in: Option<f64>,
    pub tokens_out: Option<f64>,
    /// When a usage limit ends.
    pub reset: Option<Time>,
    pub stopped: Option<Stopped>,
}

/// The client cannot work now.
#[derive(Debug, Clone, PartialEq)]
pub struct Stopped {
    pub kind: StopKind,
    pub text: String,
    pub until: Option<Time>,
    /// If there is no `until`.
    pub pause: Option<Millis>,
}

impl Stopped {
    /// How long the agent pauses; `None` until a person resumes it.
    pub fn pause(&self, now: Time) -> Option<Millis> {
        // A reset in the past, or one second from now, is a clock that is wrong: it must not become a tight loop.
        const LEAST: Millis = Millis::seconds(10);
        // The longest pause that a fleet accepts.
        const MOST: Millis = Millis::days(30);
        self.until.map(|until| until.since(now).clamp(LEAST, MOST)).or(self.pause)
    }

    pub fn reason(&self) -> String {
        let text = if self.text.is_empty() { String::new() } else { format!(": {}", self.text) };
        format!("{}{text}", self.kind.as_str())
    }
}

impl Reading {
    /// Takes a line of output into account.
    fn line(&mut self, line: &Value, profile: &Profile, now: &Zoned) {
        for read in profile.read.iter().filter(|read| matches(line, &read.matches)) {
            self.read(line, read);
        }
        let stopped = profile
            .stop
            .iter()
            .filter(|stop| matches(line, &stop.matches) && (self.reset.is_some() || !stop.needs_reset))
            .find_map(|stop| self.stopped_by(line, stop, now));
        self.stopped = stopped.or(self.stopped.take());
    }

    fn read(&mut self, line: &Value, read: &Read) {
        let text = |pointer: &Option<String>| {
            pointer.as_ref().and_then(|pointer| line.pointer(pointer)?.as_str()).map(str::to_owned)
        };
        self.session = text(&read.session).or(self.session.take());
        self.result = text(&read.result).or(self.result.take());
        for (total, pointers) in [
            (&mut self.usd, &read.usd),
            (&mut self.tokens_in, &read.tokens_in),
            (&mut self.tokens_out, &read.tokens_out),
        ] {
            let found: Vec<f64> = pointers.iter().flat_map(|at| numbers(line, at)).collect();
            if !found.is_empty() {
                let before = total.filter(|_| read.add).unwrap_or(0.0);
                *total = Some(before + found.iter().sum::<f64>());
            }
        }
        let reset = read.reset.as_ref().and_then(|pointer| line.pointer(pointer)?.as_i64());
        self.reset = reset.map(|seconds| Time(seconds.saturating_mul(1000))).or(self.reset);
    }

    fn stopped_by(&self, line: &Value, stop: &Stop, now: &Zoned) -> Option<Stopped> {
        let text = stop.text.as_ref().and_then(|pointer| line.pointer(pointer)?.as_str()).unwrap_or_default();
        let lower = text.to_lowercase();
        if !stop.contains.is_empty() && !stop.contains.iter().any(|part| lower.contains(&part.to_lowercase()))
        {
            return None;
        }
        let in_words = stop.reset_after.as_ref().and_then(|words| reset_in_words(text, words, now));
        Some(Stopped {
            kind: stop.kind,
            text: text.to_owned(),
            until: self.reset.filter(|_| stop.kind == StopKind::UsageLimit).or(in_words),
            pause: stop.pause,
        })
    }

    /// Tokens in both directions.
    pub fn tokens(&self) -> Option<f64> {
        [self.tokens_in, self.tokens_out].into_iter().flatten().reduce(|a, b| a + b)
    }

    /// The cost in the form of `run/settle`; `None` if the output told none. The spend limits count its first three fields, and refuse
    /// numbers out of range: a client that tells nonsense must not lose its work for it.
    pub fn cost(&self) -> Option<Value> {
        let within =
            |number: Option<f64>, most: f64| number.filter(|n| n.is_finite()).map(|n| n.clamp(0.0, most));
        let tokens = |number| within(number, TOKENS_MAX).map(|n| json!(n as i64));
        let fields = [
            ("usd", within(self.usd, USD_MAX).map(|usd| json!(to_millionth(usd)))),
            ("tokens_in", tokens(self.tokens_in)),
            ("tokens_out", tokens(self.tokens_out)),
            ("session", self.session.as_ref().map(|session| json!(session))),
        ];
        let known: serde_json::Map<_, _> =
            fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        (!known.is_empty()).then_some(Value::Object(known))
    }
}

/// The numbers at a JSON pointer in which `*` stands for every key.
fn numbers(value: &Value, pointer: &str) -> Vec<f64> {
    match pointer.split_once("/*") {
        None => value.pointer(pointer).and_then(Value::as_f64).into_iter().collect(),
        Some((before, after)) => {
            let below = value.pointer(before).and_then(Value::as_object);
            below.into_iter().flat_map(|map| map.values()).flat_map(|value| numbers(value, after)).collect()
        }
    }
}

/// The time that a text names after these words: `10:41 PM`, the next one, or `Nov 22nd, 2026 1:48 PM`.
fn reset_in_words(text: &str, words: &str, now: &Zoned) -> Option<Time> {
    let (_, after) = text.split_once(words)?;
    let said = after.split('.').next()?.trim();
    // jiff knows no ordinals: `22nd` becomes `22`.
    let ordinals = ["st,", "nd,", "rd,", "th,"];
    let plain = ordinals.iter().fold(said.to_owned(), |said, ordinal| said.replace(ordinal, ","));
    let day = civil::DateTime::strptime("%b %d, %Y %I:%M %p", &plain);
    let day = day.or_else(|_| civil::DateTime::strptime("%b %d, %Y %I:%M%p", &plain));
    let at = match day {
        Ok(day) => day.to_zoned(now.time_zone().clone()).ok()?,
        Err(_) => {
            let time = civil::Time::strptime("%I:%M %p", &plain).ok()?;
            let today = now.date().to_datetime(time).to_zoned(now.time_zone().clone()).ok()?;
            if today > *now { today } else { today.tomorrow().ok()? }
        }
    };
    Some(Time(at.timestamp().as_millisecond()))
}

fn matches(line: &Value, wanted: &Where) -> bool {
    wanted.iter().all(|(pointer, value)| {
        let found = line.pointer(pointer);
        match value {
            toml::Value::Array(values) => {
                values.iter().any(|value| found.is_some_and(|found| is(found, value)))
            }
            value => found.is_some_and(|found| is(found, value)),
        }
    })
}

fn is(found: &Value, value: &toml::Value) -> bool {
    match value {
        toml::Value::String(text) => found == text,
        toml::Value::Integer(number) => found == number,
        toml::Value::Boolean(truth) => found == truth,
        _ => false,
    }
}

/// Splits the output into lines, and reads each that is a JSON object.
#[derive(Debug)]
pub struct Lines {
    profile: Profile,
    line: Vec<u8>,
    too_long: bool,
    pub reading: Reading,
}

impl Lines {
    pub fn new(profile: &Profile) -> Self {
        Self { profile: profile.clone(), line: Vec::new(), too_long: false, reading: Reading::default() }
    }

    pub fn take(&mut self, bytes: &[u8]) {
        // Most commands print no JSON.
        if self.profile.read.is_empty() && self.profile.stop.is_empty() {
            return;
        }
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let ends = part.ends_with(b"\n");
            self.too_long |= self.line.len() + part.len() > LINE_MAX;
            if !self.too_long {
                self.line.extend_from_slice(part);
            }
            if ends {
                self.end_line();
            }
        }
    }

    /// The last line need not have an end.
    pub fn end_line(&mut self) {
        if !self.too_long
            && self.line.first() == Some(&b'{')
            && let Ok(line) = serde_json::from_slice(&self.line)
        {
            self.reading.line(&line, &self.profile, &Zoned::now());
        }
        self.line.clear();
        self.too_long = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fmt::Write;

    /// Output of the real clients, as the profiles read it. (The services that they talked to were stand-ins.)
    #[test]
    fn the_clients_are_understood() {
        let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands/work/recorded");
        let mut names: Vec<String> = std::fs::read_dir(recorded)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let mut page = String::new();
        for name in names {
            let profile = Profile::load(name.split('-').next().unwrap()).unwrap();
            let output = std::fs::read(format!("{recorded}/{name}")).unwrap();
            let mut lines = Lines::new(&profile);
            // In pieces, as a pipe gives them.
            output.chunks(1000).for_each(|chunk| lines.take(chunk));
            lines.end_line();
            let Reading { session, result, usd, tokens_in, tokens_out, stopped, .. } = lines.reading;
            let result = result.unwrap_or_default();
            let result = result.split('\n').next().unwrap_or_default();
            let _ = write!(page, "{}\n  ", name.trim_end_matches(".jsonl"));
            let number = |number: Option<f64>| number.map_or("?".to_owned(), |n| format!("{n:.6}"));
            let [usd, tokens_in, tokens_out] = [usd, tokens_in, tokens_out].map(number);
            let tokens = format!("{tokens_in} in, {tokens_out} out").replace(".000000", "");
            let session = if session.is_some() { "known" } else { "unknown" };
            let _ = write!(page, "session {session}, ${usd}, {tokens}: {result}");
            if let Some(Stopped { kind, text, until, pause }) = stopped {
                // It is local time.
                let until = match (until, text.contains("try again at ")) {
                    (Some(_), true) => "the time that it names".into(),
                    (Some(until), false) => until.to_string(),
                    (None, _) => pause.map_or("a person acts".into(), |pause| format!("for {pause}")),
                };
                let _ = write!(page, "\n  {}, {until}: {text}", kind.as_str());
            }
            page.push('\n');
        }
        insta::assert_snapshot!(page);
    }

    #[test]
    fn a_cost_is_one_that_the_fleet_accepts() {
        let cost = |usd, tokens_in, tokens_out| {
            let reading =
                Reading { usd, tokens_in, tokens_out, session: Some("s".into()), ..Reading::default() };
            reading.cost().unwrap()
        };
        assert_eq!(
            cost(Some(0.1 + 0.2), Some(5.0), None),
            json!({ "session": "s", "tokens_in": 5, "usd": 0.3 })
        );
        assert_eq!(
            cost(Some(-1.0), Some(f64::NAN), Some(1e300)),
            json!({ "session": "s", "tokens_out": 1_000_000_000_000_i64, "usd": 0.0 })
        );
        assert_eq!(Reading::default().cost(), None);
    }

    #[test]
    fn a_reset_in_words() {
        let now: Zoned = "2026-11-17T20:00:00[UTC]".parse().unwrap();
        let cases = [
            ("try again at 10:41 PM.", Some("2026-11-17T22:41:00Z")),
            ("or try again at 7:05 AM.", Some("2026-11-18T07:05:00Z")),
            ("try again at Nov 22nd, 2026 1:48 PM.", Some("2026-11-22T13:48:00Z")),
            ("try again at Dec 1st, 2026 1:48 AM.", Some("2026-12-01T01:48:00Z")),
            ("Try again later.", None),
            ("try again at noon", None),
        ];
        for (text, says) in cases {
            let says = says.map(|at| Time(at.parse::<jiff::Timestamp>().unwrap().as_millisecond()));
            assert_eq!(reset_in_words(text, "try again at ", &now), says, "{text}");
        }
    }
}
