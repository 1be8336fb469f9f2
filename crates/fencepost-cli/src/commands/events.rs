use super::duration;
use crate::{
    context::{Context, resource},
    output::events::EventLines,
};
use clap::Args;
use fencepost::{
    Code, Error, Millis, Result, Time,
    event::{self, list::Events as Page},
};
use jiff::{civil::DateTime, tz::TimeZone};
use std::process::ExitCode;

/// Read the log: who did what, when, from which state to which, under which fence
///
/// Without --since it shows the latest events. With --follow it goes on as events happen, until nobody reads it. Times are local.
/// With --json it prints one JSON object, and with --follow one object per line. To miss nothing, start the next call at the
/// position where the last page ended.
///
/// Examples:
///   fence events --resource task/auth-3
///   fence events --since 1h
///   fence events --follow --kind task.completed
///   fence events --since start --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "event")]
pub struct Events {
    /// Only events after this: a position, a time such as 2026-01-31T09:00 (local) or 2026-01-31T09:00Z, or an age such as 1h
    /// or 2d; `start` for the whole log
    #[arg(long, value_name = "WHEN", value_parser = since)]
    since: Option<Since>,
    /// Go on as events happen, until interrupted
    #[arg(long, short)]
    follow: bool,
    /// Only events of this kind, such as task.completed, or of a noun, such as task
    #[arg(long)]
    kind: Option<String>,
    /// Only events of this resource, such as task/auth-3
    #[arg(long)]
    resource: Option<String>,
    /// The most events to show  [default: 50; with --follow 10; with --since all]
    #[arg(long)]
    limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq)]
enum Since {
    Start,
    Position(String),
    Ago(Millis),
    At(Time),
}

/// Parses `--since`. The forms are disjoint: a position has digits and dots, a duration has letters and no `-`, and a time has
/// digits and `-`.
fn since(text: &str) -> Result<Since, String> {
    let local = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::system()).ok();
    if text == "start" {
        Ok(Since::Start)
    } else if !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        Ok(Since::Position(text.to_owned()))
    } else if let Ok(ago) = duration(text) {
        Ok(Since::Ago(ago))
    } else if let Ok(at) = text.parse() {
        Ok(Since::At(at))
    } else if let Some(at) = local() {
        Ok(Since::At(Time(at.timestamp().as_millisecond())))
    } else {
        Err("not a position that the log gave out, a duration such as 1h or 2d, a time such as 2026-01-31T09:00, or \
             `start`"
            .into())
    }
}

/// How many events are shown without `--since`.
const LATEST: i64 = 50;

/// The size of a page, when all events are read.
const PAGE: i64 = 1000;

impl Events {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if self.follow {
            return self.follow(context).await;
        }
        let page = match (&self.since, self.limit) {
            (None, limit) => {
                let last = Some(limit.unwrap_or(LATEST));
                context.call(event::List { last, ..self.filter(context) }).await?
            }
            (Some(_), Some(_)) => {
                context.call(event::List { limit: self.limit, ..self.beginning(context) }).await?
            }
            (Some(_), None) => self.all(context).await?,
        };
        context.print(&page, |page| match page.events.as_slice() {
            [] => "no events".into(),
            events => EventLines::of(events, &context.terminal).page(events),
        })
    }

    /// The filter of the flags. Only people need titles, so JSON stays without them.
    fn filter(&self, context: &Context) -> event::List {
        event::List {
            kind: self.kind.clone(),
            resource: self.resource.as_deref().map(resource),
            titles: !context.json(),
            ..event::List::default()
        }
    }

    /// The filter, from the beginning that `--since` gives.
    fn beginning(&self, context: &Context) -> event::List {
        let list = self.filter(context);
        match self.since.clone() {
            None | Some(Since::Start) => list,
            Some(Since::Position(position)) => event::List { since: Some(position), ..list },
            Some(Since::Ago(span)) => event::List { within_ms: Some(span), ..list },
            Some(Since::At(time)) => event::List { from: Some(time), ..list },
        }
    }

    /// All events, page by page.
    async fn all(&self, context: &Context) -> Result<Page> {
        let mut page = context.call(event::List { limit: Some(PAGE), ..self.beginning(context) }).await?;
        while page.more {
            let since = Some(page.position);
            let next = event::List { since, limit: Some(PAGE), ..self.filter(context) };
            let next = context.call(next).await?;
            page.events.extend(next.events);
            (page.position, page.more) = (next.position, next.more);
        }
        Ok(page)
    }

    async fn follow(self, context: &Context) -> Result<ExitCode> {
        if self.since.is_some() && self.limit.is_some() {
            let message = "`--limit` and `--since` both say where --follow begins";
            return Err(Error::new(Code::Invalid, message).hint("leave out one of the two, or --follow"));
        }
        let first = match &self.since {
            Some(_) => event::List { limit: Some(PAGE), ..self.beginning(context) },
            None => event::List { last: Some(self.limit.unwrap_or(10)), ..self.filter(context) },
        };
        let mut page = context.call(first).await?;
        let mut lines = EventLines::following(&page.events, &context.terminal);
        loop {
            for event in &page.events {
                context.print(event, |event| lines.line(event))?;
            }
            let since = Some(page.position);
            let next = |wait_ms| event::List { since: since.clone(), wait_ms, ..self.filter(context) };
            page = match context.while_read(context.call_waiting(None, next)).await {
                Some(page) => page?,
                // The reader is gone.
                None => return Ok(ExitCode::SUCCESS),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_takes_positions_durations_and_times() {
        for (text, says) in [
            ("start", Since::Start),
            ("0.12", Since::Position("0.12".into())),
            ("2.740.3", Since::Position("2.740.3".into())),
            ("7", Since::Position("7".into())),
            ("1h", Since::Ago(Millis::minutes(60))),
            ("2d", Since::Ago(Millis::days(2))),
            ("1h 30m", Since::Ago(Millis::minutes(90))),
            ("2026-01-31T09:00:00Z", Since::At("2026-01-31T09:00:00Z".parse().unwrap())),
            ("2026-01-31T09:00:00.5+01:00", Since::At("2026-01-31T08:00:00.5Z".parse().unwrap())),
        ] {
            assert_eq!(since(text), Ok(says), "{text}");
        }
        assert!(matches!(since("2026-01-31T09:00"), Ok(Since::At(_))), "a local time");
        assert!(matches!(since("2026-01-31"), Ok(Since::At(_))), "a local day");
        for text in ["", "-1h", "nonsense", "1x", "1.2.x", "2026-13-31", "h"] {
            assert!(since(text).is_err(), "{text}");
        }
    }
}
