use super::{
    super::duration,
    show::{short, value},
};
use crate::context::Context;
use clap::Args;
use fencepost::{
    Code, Error, Result,
    storm::{self, Setting},
};
use std::{collections::BTreeMap, process::ExitCode};

/// Change settings of the scheduler, for the fleet or for one channel; every process uses them at once
///
/// Times are durations such as 30s or 5m, enabled is on or off, and everything else is a number. NAME=default removes a value: the
/// fleet has the default again, or the channel the fleet's value. `fence storm` shows all names.
///
/// Examples:
///   fence storm set max_triggers_per_window=5 window=10m
///   fence storm set enabled=off --channel general
///   fence storm set window=default
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Set {
    /// The settings, such as min_interval=1m
    #[arg(value_name = "NAME=VALUE", required = true)]
    values: Vec<String>,
    /// Only for this channel
    #[arg(long, value_name = "CHANNEL")]
    channel: Option<String>,
}

impl Set {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let values = self.values.iter().map(|given| read(given)).collect::<Result<BTreeMap<_, _>>>()?;
        let source = Some(
            context
                .agent()
                .map_or_else(|| "fence storm set".into(), |agent| format!("fence storm set by {agent}")),
        );
        let asked = values.clone();
        let reply = context.call(storm::Set { values, channel: self.channel.clone(), source }).await?;
        context.print(&reply, |reply| {
            let place = self.channel.as_ref().map_or(String::new(), |channel| format!(" in {channel}"));
            let lines = asked.iter().map(|(setting, given)| {
                let now = given.map_or_else(|| "default".into(), |given| value(*setting, given));
                let already = if reply.changed.contains(setting) { "" } else { "  (was so already)" };
                format!("{} = {now}{place}{already}", short(*setting))
            });
            lines.collect::<Vec<_>>().join("\n")
        })
    }
}

/// Reads `NAME=VALUE`.
fn read(given: &str) -> Result<(Setting, Option<i64>)> {
    let malformed = |problem: String| {
        let names: Vec<_> = Setting::ALL.into_iter().map(short).collect();
        Error::new(Code::Invalid, problem)
            .hint(format!("NAME=VALUE, where NAME is one of {}", names.join(", ")))
    };
    let (name, text) = given.split_once('=').ok_or_else(|| malformed(format!("`{given}` has no value")))?;
    let is = |setting: &Setting| {
        let written = name.replace('-', "_").to_ascii_lowercase();
        written == setting.as_str() || written == short(*setting) || name == setting.variable()
    };
    let setting =
        Setting::ALL.into_iter().find(is).ok_or_else(|| malformed(format!("`{name}` is no setting")))?;
    let value = match text {
        "default" => None,
        _ if setting.is_time() && text.parse::<i64>().is_err() => {
            let span = duration(text).map_err(|problem| malformed(format!("`{text}` is {problem}")))?;
            setting.check(span.0)?;
            Some(span.0)
        }
        _ if setting.is_time() && name == short(setting) => {
            return Err(malformed(format!("`{text}` has no unit"))
                .hint(format!("write {name}={text}s, or {}={text} for milliseconds", setting.as_str())));
        }
        _ => Some(setting.parse(text)?),
    };
    Ok((setting, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_as_people_write_them() {
        for (given, setting, value) in [
            ("window=10m", Setting::WindowMs, Some(600_000)),
            ("window_ms=600000", Setting::WindowMs, Some(600_000)),
            ("min-interval=0s", Setting::MinIntervalMs, Some(0)),
            ("AUTO_UNREAD_WINDOW_MS=5", Setting::WindowMs, Some(5)),
            ("enabled=off", Setting::Enabled, Some(0)),
            ("max_depth=default", Setting::MaxDepth, None),
        ] {
            assert_eq!(read(given).unwrap(), (setting, value), "{given}");
        }
        for given in
            ["window", "window=5", "window=soon", "nonsense=1", "enabled=2", "max_depth=0", "max_depth=x"]
        {
            assert_eq!(read(given).unwrap_err().code(), Code::Invalid, "{given}");
        }
    }
}
