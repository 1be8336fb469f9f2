use crate::{
    context::Context,
    output::{Terminal, table::Table, text::line, untrusted::BREAK},
};
use clap::{Args, Subcommand};
use fencepost::{
    Code, Result,
    route::{self, Delivered, Outcome, Route as Entry},
};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Say which agent gets what comes from Slack, GitHub and elsewhere; alone it shows the rules
///
/// Rules are tried in order, and the first that fits decides whose inbox it is. What fits none is kept: `unmatched`
/// lists it, `again` tries the rules of today on it, and `fence mail discard` gives it up. What programs say (bots,
/// and so agents' own answers) fits only a rule with --bots.
///
/// Examples:
///   fence route add slack --channel C024BE91L --text deploy --to ops
///   fence route add github --repository acme/api --event issues.opened --to triage
///   fence route unmatched
///   fence route again
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "routes")]
pub struct Route {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add a rule, or give one that is there to another agent
    Add(Add),
    /// List the rules, in the order in which they are tried
    #[command(alias = "ls")]
    List,
    /// End a rule
    #[command(aliases = ["remove", "delete"])]
    Rm {
        /// Its number
        route: i64,
        /// Why; it is kept in the log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List what fitted no rule
    Unmatched(Unmatched),
    /// Try the rules of today on what fitted none: each is routed once
    Again {
        /// Only this one
        #[arg(value_name = "ID")]
        message: Option<i64>,
    },
}

#[derive(Debug, Args)]
struct Add {
    /// slack, github, or whatever else delivers
    source: String,
    /// Whose inbox
    #[arg(long, value_name = "AGENT")]
    to: String,
    /// Only of this channel, by its id
    #[arg(long, value_name = "ID")]
    channel: Option<String>,
    /// Only of this user: their id on Slack, their login on GitHub
    #[arg(long)]
    user: Option<String>,
    /// Only of this repository, such as acme/api
    #[arg(long, value_name = "NAME")]
    repository: Option<String>,
    /// Only of this event, such as issues.opened, or of all its kinds, such as issues
    #[arg(long)]
    event: Option<String>,
    /// Only what contains these words: capitals do not matter, and a word is a whole one
    #[arg(long, value_name = "WORDS")]
    text: Option<String>,
    /// Also what programs say
    #[arg(long)]
    bots: bool,
    /// Try it before this route  [default: after all others]
    #[arg(long, value_name = "ROUTE")]
    before: Option<i64>,
}

#[derive(Debug, Args)]
struct Unmatched {
    /// Only what comes after this message: the last of the page before
    #[arg(long, value_name = "ID", alias = "after")]
    start_after: Option<i64>,
    /// At most this many  [default: 100]
    #[arg(long)]
    limit: Option<i64>,
}

impl Route {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        match self.verb.unwrap_or(Verb::List) {
            Verb::Add(add) => add.run(context).await,
            Verb::List => {
                let reply = context.call(route::List {}).await?;
                context.print(&reply, |reply| match reply.routes.as_slice() {
                    [] => "no routes: what comes from outside is kept, and fence route unmatched lists it"
                        .into(),
                    routes => table(routes, &context.terminal),
                })
            }
            Verb::Rm { route, reason } => {
                let removed =
                    context.call(route::Remove { route, reason, request: context.request() }).await?;
                context.print(&removed, |removed| format!("route {} is removed", removed.route.id))
            }
            Verb::Unmatched(unmatched) => unmatched.run(context).await,
            Verb::Again { message: Some(message) } => {
                let reply = context.call(route::Again { message, request: context.request() }).await?;
                context.print(&reply, |reply| became(message, reply))
            }
            Verb::Again { message: None } => again(context).await,
        }
    }
}

impl Add {
    async fn run(self, context: &Context) -> Result<ExitCode> {
        let add = route::Add {
            source: self.source,
            agent: self.to,
            channel: self.channel,
            user: self.user,
            repository: self.repository,
            event: self.event,
            text: self.text,
            bots: self.bots,
            before: self.before,
            request: context.request(),
        };
        let added = context.call(add).await?;
        context.print(&added, |added| {
            let route = table(std::slice::from_ref(&added.route), &context.terminal);
            match added.agent_unknown {
                true => format!("{route}\n{}", not_joined(&added.route.agent)),
                false => route,
            }
        })
    }
}

/// For one who may have mistyped a name.
pub fn not_joined(agent: &str) -> String {
    format!("no agent {agent} has joined yet: what comes waits in its inbox until fence agent join {agent}")
}

impl Unmatched {
    async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(route::Unmatched { after: self.start_after, limit: self.limit }).await?;
        context.print(&reply, |reply| {
            let Some(last) = reply.messages.last() else { return "nothing is unmatched".into() };
            let mut table = Table::new(&["ID", "SOURCE", "EVENT", "WHERE", "USER", "WHEN", "TEXT"]);
            for stray in &reply.messages {
                let content = stray.content.clone().unwrap_or_default();
                table.row(vec![
                    stray.id.to_string().into(),
                    content.source.into(),
                    content.event.unwrap_or_default().into(),
                    content.repository.or(content.channel).unwrap_or_default().into(),
                    content.sender.unwrap_or_default().into(),
                    context.terminal.when(stray.created_at).into(),
                    line(content.text.split(['\n', BREAK]).next().unwrap_or_default()).into(),
                ]);
            }
            let more = reply
                .more
                .then(|| format!("\n{}", context.terminal.and_more(&format!("--start-after {}", last.id))));
            table.render(&context.terminal) + &more.unwrap_or_default()
        })
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Tried {
    routed: Vec<Delivered>,
    /// How many still fit no rule.
    left: usize,
}

/// One after the other, each in a transaction of its own: whatever ends this in the middle, none is routed twice.
async fn again(context: &Context) -> Result<ExitCode> {
    let (mut tried, mut messages, mut after) = (Tried::default(), Vec::new(), None);
    loop {
        let page = context.call(route::Unmatched { after, limit: None }).await?;
        for message in page.messages.iter().map(|stray| stray.id) {
            after = Some(message);
            match context.call(route::Again { message, request: None }).await {
                Ok(reply) if reply.outcome == Outcome::Unmatched => tried.left += 1,
                Ok(reply) => {
                    messages.push(message);
                    tried.routed.push(reply);
                }
                // Somebody has it in hand, or it is nothing that was delivered.
                Err(error)
                    if matches!(
                        error.code(),
                        Code::AlreadyClaimed | Code::AlreadyFinished | Code::Invalid
                    ) =>
                {
                    context.warn(&error);
                    tried.left += 1;
                }
                Err(error) => return Err(error),
            }
        }
        if !page.more {
            break;
        }
    }
    context.print(&tried, |tried| {
        let told = messages.iter().zip(&tried.routed).map(|(message, reply)| became(*message, reply));
        let sum = format!("{} routed, {} fit no rule", tried.routed.len(), tried.left);
        told.chain([sum]).collect::<Vec<_>>().join("\n")
    })
}

fn became(message: i64, reply: &Delivered) -> String {
    let agent = reply.agent.as_deref().unwrap_or_default();
    match reply.outcome {
        Outcome::Unmatched => format!("{message} fits no rule"),
        Outcome::Routed => format!("{message} is message {} of {agent}", reply.message),
        Outcome::Repeated => {
            format!("{message} was in the inbox of {agent} already, as message {}", reply.message)
        }
    }
}

fn table(routes: &[Entry], terminal: &Terminal) -> String {
    let mut table = Table::new(&["ROUTE", "TO", "RULE"]);
    for route in routes {
        table.row(vec![
            route.id.to_string().into(),
            route.agent.as_str().into(),
            line(&route.rule.to_string()).into(),
        ]);
    }
    table.render(terminal)
}
