use super::{
    accepted,
    hook_script::HOOKS,
    place::{self, Found, Place},
    repository::{ASK, HOOKS_PATH, REQUIRE, Repository},
};
use crate::{context::Context, output::table::Table, settings::without_password};
use clap::Args;
use fencepost::Result;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Show the hooks of this git repository, and the highest fence that it accepted for each task
#[derive(Debug, Args)]
pub struct Status {}

#[derive(Debug, Serialize, Deserialize)]
struct Now {
    /// Does git call the hooks, and are they all there?
    active: bool,
    directory: String,
    hooks: Vec<Hook>,
    /// The directory of hooks that ours calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asks: Option<String>,
    requires: Vec<String>,
    accepted: Vec<Accepted>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Hook {
    name: String,
    state: State,
    /// The hook that is called first.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Installed,
    Missing,
    Changed,
    NotOurs,
}

impl State {
    fn describe(self) -> &'static str {
        match self {
            State::Installed => "installed",
            State::Missing => "missing",
            State::Changed => "changed since fence wrote it",
            State::NotOurs => "not a hook of fence",
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Accepted {
    task: String,
    fleet: String,
    fence: i64,
}

impl Status {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let repository = Repository::here().await?;
        let place = Place::of(&repository).await?;
        let mut hooks = Vec::new();
        for (name, _) in HOOKS {
            let state = match place::found(&place.directory, name)? {
                Found::Nothing => State::Missing,
                Found::Ours => State::Installed,
                Found::Changed => State::Changed,
                Found::Others => State::NotOurs,
            };
            let before = place::kept(&place.directory, name).map(|path| path.display().to_string());
            hooks.push(Hook { name: name.into(), state, before });
        }
        let used = repository.path_setting(HOOKS_PATH).await?.map(|found| found.value);
        let used = match &place.before {
            Some(_) => used.as_deref() == place.directory.to_str(),
            None => true,
        };
        let fences = accepted::read(&repository.own_directory())?;
        let now = Now {
            active: used && hooks.iter().all(|hook| matches!(hook.state, State::Installed | State::Changed)),
            directory: place.directory.display().to_string(),
            hooks,
            calls: place.before.clone(),
            asks: repository.setting(ASK).await?.map(|fleet| without_password(&fleet)),
            requires: repository.settings(REQUIRE).await?,
            accepted: fences
                .iter()
                .map(|(fleet, task, fence)| Accepted { task: task.into(), fleet: fleet.into(), fence })
                .collect(),
        };
        context.print(&now, |now| text(now, context))
    }
}

fn text(now: &Now, context: &Context) -> String {
    let mut lines = vec![match now.active {
        true => format!("hooks in {}", now.directory),
        false => "the hooks of fence are not active here: fence git install sets them".to_owned(),
    }];
    for hook in &now.hooks {
        let before = hook.before.as_ref().map_or(String::new(), |before| format!(", calls {before} first"));
        lines.push(format!("  {:<18}  {}{before}", hook.name, hook.state.describe()));
    }
    if let Some(calls) = &now.calls {
        lines.push(format!("hooks of {calls} are called first"));
    }
    if let Some(fleet) = &now.asks {
        lines.push(format!("pushes to this repository also ask the fleet {fleet}"));
    }
    if !now.requires.is_empty() {
        lines.push(format!("only commits with a Fence: trailer are accepted on {}", now.requires.join(", ")));
    }
    if now.accepted.is_empty() {
        lines.push("no push with a fence was accepted here".into());
        return lines.join("\n");
    }
    let mut table = Table::new(&["task", ">fence", "fleet"]).headed();
    for accepted in &now.accepted {
        table.row(vec![
            accepted.task.as_str().into(),
            accepted.fence.to_string().into(),
            accepted.fleet.as_str().into(),
        ]);
    }
    lines.push(format!("accepted fences\n{}", table.render(&context.terminal)));
    lines.join("\n")
}
