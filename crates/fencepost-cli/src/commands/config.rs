use crate::{
    context::Context,
    output::table::Table,
    settings::{self, Setting},
};
use clap::{Args, Subcommand};
use fencepost::Result;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Show the settings, and the source of each value
///
/// Flags come first, then FENCE_* variables, then fence.toml. The file is the one that FENCE_CONFIG names, else the nearest one in
/// this directory or above it that you trust (see fence trust), else fence/fence.toml in your configuration directory. Settings of
/// all commands stand at its top, and settings of one command in a table with the name of the command. An unknown setting is an
/// error.
///
/// Examples:
///   fence config show
///   printf 'url = "https://fence.example.com"\n' > fence.toml && fence trust
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Config {
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the settings and their sources
    Show,
}

#[derive(Debug, Serialize, Deserialize)]
struct Shown {
    key: String,
    value: Option<String>,
    source: String,
}

impl Config {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let Verb::Show = self.command.unwrap_or(Verb::Show);
        let (common, file) = context.settings();
        let own = settings::by_command(&context.command_line(), file)?;
        let all: Vec<_> = common.iter().cloned().chain(own).map(shown).collect();
        context.print(&all, |all| {
            let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
            for setting in all {
                let value = setting.value.as_deref().unwrap_or("-");
                table.row(vec![setting.key.as_str().into(), value.into(), setting.source.as_str().into()]);
            }
            table.render(&context.terminal)
        })
    }
}

fn shown(setting: Setting) -> Shown {
    let value = setting.value.map(|value| settings::shown(&setting.key, &value));
    Shown { key: setting.key, value, source: setting.source.to_string() }
}
