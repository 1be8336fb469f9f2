use crate::{context::Context, output::table::Table};
use clap::{Args, Subcommand, ValueEnum};
use fencepost::{
    Access, Result,
    key::{self, Key as Entry},
};
use std::process::ExitCode;

/// Manage the keys that clients need to call a server; without a verb it lists them
///
/// Once a fleet has a key, its servers refuse calls without one, even after all keys were revoked. A server whose address others
/// can reach does not start before there is a key. A reader may read. An agent's key acts as one agent, and on that agent's claims.
/// An admin may do everything. A key is shown only once, when it is made: keep it, and set FENCE_KEY to it where the agent runs.
///
/// Examples:
///   fence key add kim --role admin
///   fence key add builder --role agent --agent codex-2
///   fence key revoke builder
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "keys")]
pub struct Key {
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a key, and show it once
    Add(Add),
    /// List the keys
    #[command(alias = "ls")]
    List {
        /// Include revoked keys
        #[arg(long)]
        all: bool,
    },
    /// Revoke a key: calls with it are refused from now on
    #[command(aliases = ["rm", "remove"])]
    Revoke {
        name: String,
        /// Revoke even the last admin's key; after that, new keys need --db, on the machine of the database
        #[arg(long)]
        force: bool,
        /// The reason, for the log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

#[derive(Debug, Args)]
struct Add {
    name: String,
    /// The role; for `agent`, --agent names the agent  [default: the name of the key]
    #[arg(long, value_enum)]
    role: Role,
    /// Print only the key
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Reader,
    Agent,
    Admin,
}

impl From<Role> for Access {
    fn from(role: Role) -> Self {
        match role {
            Role::Reader => Access::Reader,
            Role::Agent => Access::Agent,
            Role::Admin => Access::Admin,
        }
    }
}

impl Key {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        match self.command.unwrap_or(Verb::List { all: false }) {
            Verb::Add(add) => add.run(context).await,
            Verb::List { all } => {
                let keys = context.call(key::List { all, limit: Some(1000) }).await?;
                context.print(&keys, |keys| match keys.keys.as_slice() {
                    [] => "no keys".into(),
                    keys => table(keys, context),
                })
            }
            Verb::Revoke { name, force, reason } => {
                let revoked = context.call(key::Revoke { name, force, reason }).await?;
                context.print(&revoked, |revoked| format!("key {} is revoked", revoked.key.name))
            }
        }
    }
}

impl Add {
    async fn run(self, context: &Context) -> Result<ExitCode> {
        // In this command the flag names the agent of the key, and not the one that acts.
        let agent = context.flag("agent");
        let maker = if agent.is_some() { None } else { context.agent() };
        let op = key::Add { name: self.name, role: self.role.into(), agent };
        let added = context.open(maker).await?.call(op).await?;
        context.print(&added, |added| {
            let (secret, about) = (&added.secret, describe(&added.key));
            match self.quiet {
                true => secret.clone(),
                false => format!(
                    "{secret}\n\nkey {}: {about}\nthe key is not shown again: set FENCE_KEY to it",
                    added.key.name
                ),
            }
        })
    }
}

fn describe(key: &Entry) -> String {
    let role = key.role.as_str();
    key.agent.as_ref().map_or_else(|| role.to_owned(), |agent| format!("{role}, acts as {agent}"))
}

fn table(keys: &[Entry], context: &Context) -> String {
    let mut table = Table::new(&["KEY", "ROLE", "MADE", "REVOKED"]);
    for key in keys {
        let revoked = key.revoked_at.map_or("-".to_owned(), |at| context.terminal.when(at));
        table.row(vec![
            key.name.as_str().into(),
            describe(key).into(),
            context.terminal.when(key.created_at).into(),
            revoked.into(),
        ]);
    }
    table.render(&context.terminal)
}
