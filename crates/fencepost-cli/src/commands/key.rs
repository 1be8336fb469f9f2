use crate::{context::Context, output::table::Table};
use clap::{Args, Subcommand, ValueEnum};
use fencepost::{
    Access, Result,
    key::{self, Key as Entry},
};
use std::process::ExitCode;

/// Say who may call the fleet from afar: make and end keys; alone it lists them
///
/// From the first key on, every server of the fleet asks for one, also when all were revoked; on an address that others
/// can reach it does not start without. A reader looks; an agent works, as one agent and on that
/// agent's claims; an admin may do everything. A key is shown when it is made and never again: keep it, and set
/// FENCE_KEY to it where the agent runs.
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
    /// Make a key, and show it this once
    Add(Add),
    /// List the keys that there are
    #[command(alias = "ls")]
    List {
        /// Also those that were revoked
        #[arg(long)]
        all: bool,
    },
    /// End a key: from now on it opens nothing
    #[command(aliases = ["rm", "remove"])]
    Revoke {
        name: String,
        /// Also the last admin's key: after that, keys are made only with --db, where the database is
        #[arg(long)]
        force: bool,
        /// Why; it is kept in the log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

#[derive(Debug, Args)]
struct Add {
    name: String,
    /// How much it may do; with `agent`, --agent says as whom  [default: the agent of the key's own name]
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
        // Here the flag says for whom the key is, and not who makes it.
        let agent = context.flag("agent");
        let maker = if agent.is_some() { None } else { context.agent() };
        let op = key::Add { name: self.name, role: self.role.into(), agent };
        let added = context.open(maker).await?.call(op).await?;
        context.print(&added, |added| {
            let (secret, about) = (&added.secret, describe(&added.key));
            match self.quiet {
                true => secret.clone(),
                false => format!(
                    "{secret}\n\nkey {}: {about}\nit is not shown again: set FENCE_KEY to it",
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
