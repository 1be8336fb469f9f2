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

/// Route messages from Slack, GitHub and elsewhere to agents; without a verb it lists the routes
///
/// Routes are tried in order, and the first that matches decides which agent's inbox gets the message. A message that matches no
/// route is kept: `unmatched` lists such messages, `again` tries the current routes on them, and `fence mail discard` gives them up.
/// Messages of programs (bots, and so an agent's own answers) match only a route with --bots.
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
    /// Add a route, or give an existing one to another agent
    Add(Add),
    /// List the routes, in the order in which they are tried
    #[command(alias = "ls")]
    List,
    /// Remove a route
    #[command(aliases = ["remove", "delete"])]
    Rm {
        /// The number of the route
        route: i64,
        /// The reason, for the log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List messages that matched no route
    Unmatched(Unmatched),
    /// Try the current routes on messages that matched none; each is routed once
    Again {
        /// Only this message
        #[arg(value_name = "ID")]
        message: Option<i64>,
    },
}

#[derive(Debug, Args)]
struct Add {
    /// The source: slack, github, or another one that delivers
    source: String,
    /// The agent whose inbox gets the message
    #[arg(long, value_name = "AGENT")]
    to: String,
    /// Only messages of this channel, by its id
    #[arg(long, value_name = "ID")]
    channel: Option<String>,
    /// Only messages of this user: the id on Slack, the login on GitHub
    #[arg(long)]
    user: Option<String>,
    /// Only messages of this repository, such as acme/api
    #[arg(long, value_name = "NAME")]
    repository: Option<String>,
    /// Only this event, such as issues.opened, or all of a kind, such as issues
    #[arg(long)]
    event: Option<String>,
    /// Only messages with these words, as whole words and in any case
    #[arg(long, value_name = "WORDS")]
    text: Option<String>,
    /// Include messages of programs
    #[arg(long)]
    bots: bool,
    /// Try the new route before this one  [default: after all others]
    #[arg(long, value_name = "ROUTE")]
    before: Option<i64>,
}

#[derive(Debug, Args)]
struct Unmatched {
    /// Start after this message, the last one of the previous page
    #[arg(long, value_name = "ID", alias = "after")]
    start_after: Option<i64>,
    /// The most messages to show  [default: 100]
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
                    [] => "no routes: messages from outside are kept, and fence route unmatched lists them"
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
                context.print(&reply, |reply| describe(message, reply))
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

/// Warns of an agent that has not joined: its name may be mistyped.
pub fn not_joined(agent: &str) -> String {
    format!("no agent {agent} has joined yet: messages wait in its inbox until fence agent join {agent}")
}

impl Unmatched {
    async fn run(self, context: &Context) -> Result<ExitCode> {
        let reply = context.call(route::Unmatched { after: self.start_after, limit: self.limit }).await?;
        context.print(&reply, |reply| {
            let Some(last) = reply.messages.last() else { return "no unmatched messages".into() };
            let mut table = Table::new(&["ID", "SOURCE", "EVENT", "WHERE", "USER", "WHEN", "TEXT"]);
            for message in &reply.messages {
                let content = message.content.clone().unwrap_or_default();
                table.row(vec![
                    message.id.to_string().into(),
                    content.source.into(),
                    content.event.unwrap_or_default().into(),
                    content.repository.or(content.channel).unwrap_or_default().into(),
                    content.sender.unwrap_or_default().into(),
                    context.terminal.when(message.created_at).into(),
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
    /// How many still match no route.
    left: usize,
}

/// Routes messages one by one, each in its own transaction: if this stops in the middle, no message is routed twice.
async fn again(context: &Context) -> Result<ExitCode> {
    let (mut tried, mut messages, mut after) = (Tried::default(), Vec::new(), None);
    loop {
        let page = context.call(route::Unmatched { after, limit: None }).await?;
        for message in page.messages.iter().map(|message| message.id) {
            after = Some(message);
            match context.call(route::Again { message, request: None }).await {
                Ok(reply) if reply.outcome == Outcome::Unmatched => tried.left += 1,
                Ok(reply) => {
                    messages.push(message);
                    tried.routed.push(reply);
                }
                // Somebody holds the message, or no provider delivered it.
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
        let lines = messages.iter().zip(&tried.routed).map(|(message, reply)| describe(*message, reply));
        let sum = format!("{} routed, {} match no route", tried.routed.len(), tried.left);
        lines.chain([sum]).collect::<Vec<_>>().join("\n")
    })
}

fn describe(message: i64, reply: &Delivered) -> String {
    let agent = reply.agent.as_deref().unwrap_or_default();
    match reply.outcome {
        Outcome::Unmatched => format!("{message} matches no route"),
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
