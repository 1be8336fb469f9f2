use crate::{
    context::Context,
    output::{
        Terminal,
        table::{Cell, Table},
    },
};
use clap::Args;
use fencepost::{
    Millis, Result,
    storm::{
        self, Setting,
        show::{PairView, SettingView, Shown},
    },
};
use std::process::ExitCode;

/// Show settings and their sources, the breaker, live wake-ups, budgets, and what was suppressed and why
#[derive(Debug, Args, Default)]
pub struct Show {
    /// The most agents and channels to show  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

impl Show {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(storm::Show { limit: self.limit }).await?;
        context.print(&reply, |reply| page(reply, &context.terminal))
    }
}

fn page(shown: &Shown, terminal: &Terminal) -> String {
    let mut parts = vec![summary(shown, terminal), settings(&shown.settings, terminal)];
    parts.push(match shown.pairs.as_slice() {
        [] => "nobody has a wake-up or waits for one".into(),
        pairs => table(pairs, terminal),
    });
    for alarm in &shown.alarms {
        let text = format!("alarm: {} ({})", alarm.message, terminal.when(alarm.at));
        parts.push(terminal.wrap(&terminal.paint(crate::output::terminal::state("problem"), &text), 0, 2));
    }
    for server in &shown.servers {
        let text = format!(
            "server {} has {}={} in its environment, and the fleet has {}",
            server.server, server.variable, server.value, server.fleet
        );
        parts.push(terminal.wrap(&text, 0, 2));
    }
    parts.join("\n\n")
}

fn summary(shown: &Shown, terminal: &Terminal) -> String {
    let count = |name: &str| shown.counts.get(name).copied().unwrap_or_default();
    let breaker = match (&shown.breaker.open, shown.breaker.open_until) {
        (false, _) => "closed".into(),
        (true, Some(until)) => format!("open {}", terminal.until(until)),
        (true, None) => "open until fence storm breaker close".into(),
    };
    format!(
        "breaker {breaker}; {} pending or running\n{} scheduled; suppressed: {} by budgets, {} by the breaker, {} by causes; {} \
         reclaimed",
        shown.pending_jobs,
        count("scheduled"),
        count("suppressed_budget"),
        count("suppressed_breaker"),
        count("suppressed_cause"),
        count("reclaimed"),
    )
}

fn settings(settings: &[SettingView], terminal: &Terminal) -> String {
    let mut table = Table::new(&["SETTING", ">VALUE", "CHANNEL", "SOURCE"]);
    for setting in settings {
        table.row(vec![
            short(setting.name).into(),
            value(setting.name, setting.value).into(),
            setting.channel.clone().unwrap_or_default().into(),
            setting.source.clone().into(),
        ]);
    }
    table.render(terminal)
}

/// The name of a setting as the command line has it: `window` for `window_ms`.
pub(super) fn short(setting: Setting) -> &'static str {
    setting.as_str().trim_end_matches("_ms")
}

/// A value as people write it.
pub(super) fn value(setting: Setting, value: i64) -> String {
    match setting {
        Setting::Enabled => if value == 1 { "on" } else { "off" }.into(),
        _ if setting.is_time() => Millis(value).to_string(),
        _ => value.to_string(),
    }
}

fn table(pairs: &[PairView], terminal: &Terminal) -> String {
    let mut table = Table::new(&["CHANNEL", "AGENT", "STATE", ">BUDGET", ">SUPPRESSED", "WHY"]);
    for pair in pairs {
        let again = pair.until.filter(|until| *until > terminal.now());
        let until =
            again.map_or(String::new(), |until| format!(", looked at again {}", terminal.when(until)));
        let why = match (&pair.run, pair.message, pair.why) {
            (Some(run), Some(message), _) => format!("run {run} has message/{message}"),
            (None, Some(message), _) => format!("message/{message} waits for a poll"),
            (_, None, Some(why)) => format!("{}{until}", why.as_str()),
            (_, None, None) => "the next tick looks at it".into(),
        };
        table.row(vec![
            pair.channel.clone().into(),
            pair.agent.clone().into(),
            Cell::state(&pair.state),
            pair.budget_left.to_string().into(),
            pair.suppressed.to_string().into(),
            why.into(),
        ]);
    }
    table.headed().render(terminal)
}
