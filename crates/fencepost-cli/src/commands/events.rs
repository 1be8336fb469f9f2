use crate::{
    context::Context,
    out,
    screen::{Cell, Screen, Table, json},
};
use clap::Args;
use fencepost::{
    Result,
    event::{self, Entry, list::Events as Page},
};
use std::process::ExitCode;

/// Read the log: who did what, when, from which state to which, under which fence
///
/// Shows the latest unless --since says where to begin; with --follow it goes on as things happen, and prints one
/// JSON object a line with --json. Nothing is missed by beginning again where the last page ended.
///
/// Examples:
///   fence events --resource task/auth-3
///   fence events --follow --kind task.completed
///   fence events --since start --json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, alias = "event")]
pub struct Events {
    /// Only what came after this position; `start` for all there is
    #[arg(long, value_name = "POSITION")]
    since: Option<String>,
    /// Go on as things happen, until interrupted
    #[arg(long, short)]
    follow: bool,
    /// Only of this kind, such as task.completed, or of a noun, such as task
    #[arg(long)]
    kind: Option<String>,
    /// Only of this resource, such as task/auth-3
    #[arg(long)]
    resource: Option<String>,
    /// At most this many  [default: 50, or all after --since]
    #[arg(long)]
    limit: Option<i64>,
}

/// The latest, when nobody says where to begin.
const LATEST: i64 = 50;

impl Events {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if self.follow {
            return self.follow(context).await;
        }
        let page = match (&self.since, self.limit) {
            (None, limit) => {
                context.call(event::List { last: Some(limit.unwrap_or(LATEST)), ..self.filter() }).await?
            }
            (Some(_), Some(_)) => {
                context.call(event::List { since: self.since(), limit: self.limit, ..self.filter() }).await?
            }
            (Some(_), None) => self.all(context).await?,
        };
        context.print(&page, |page| match page.events.as_slice() {
            [] => "no events".into(),
            events => table(events, &context.screen),
        })
    }

    fn filter(&self) -> event::List {
        event::List {
            kind: self.kind.clone(),
            resource: self.resource.as_deref().map(super::resource),
            ..event::List::default()
        }
    }

    fn since(&self) -> Option<String> {
        self.since.clone().filter(|since| since != "start")
    }

    /// Everything after a position, page by page.
    async fn all(&self, context: &Context) -> Result<Page> {
        let mut since = self.since();
        let mut events = Vec::new();
        loop {
            let page = context.call(event::List { since, limit: Some(1000), ..self.filter() }).await?;
            events.extend(page.events);
            if !page.more {
                return Ok(Page { events, position: page.position, more: false });
            }
            since = Some(page.position);
        }
    }

    async fn follow(self, context: &Context) -> Result<ExitCode> {
        let first = match &self.since {
            Some(_) => self.all(context).await?,
            None => {
                context.call(event::List { last: Some(self.limit.unwrap_or(10)), ..self.filter() }).await?
            }
        };
        let mut page = first;
        loop {
            for event in &page.events {
                context.print(event, |event| line(event, &context.screen))?;
            }
            // Whoever read along has seen enough.
            if out::is_unread() {
                return Ok(ExitCode::SUCCESS);
            }
            let since = Some(page.position);
            page = context
                .call_waiting(None, |wait_ms| event::List { since: since.clone(), wait_ms, ..self.filter() })
                .await?;
        }
    }
}

pub fn table(events: &[Entry], screen: &Screen) -> String {
    let mut table = Table::new(&["WHEN", "KIND", "RESOURCE", "STATE", "BY", "DETAILS"]);
    for event in events {
        table.row(cells(event, screen));
    }
    table.render(screen)
}

/// One event, as it happens: there is no table to align it with yet, and "now" is another for each.
fn line(event: &Entry, screen: &Screen) -> String {
    let mut table = Table::new(&["", "", "", "", "", ""]);
    let mut cells = cells(event, screen);
    cells[0] = event.at.to_string().into();
    table.row(cells);
    table.render(screen).lines().last().unwrap_or_default().to_owned()
}

fn cells(event: &Entry, screen: &Screen) -> Vec<Cell> {
    let state = match (&event.from, &event.to) {
        (Some(from), Some(to)) if from != to => format!("{from} -> {to}"),
        (_, to) => to.clone().unwrap_or_default(),
    };
    let run = event.run.as_ref().map(|run| match event.fence {
        Some(fence) => format!("{run}@{fence}"),
        None => run.clone(),
    });
    let by: Vec<String> =
        run.into_iter().chain(event.agent.as_ref().map(|agent| format!("agent {agent}"))).collect();
    let details = event.details.as_ref().map(json).unwrap_or_default();
    vec![
        screen.when(event.at).into(),
        event.kind.as_str().into(),
        event.resource.as_str().into(),
        state.into(),
        by.join(" ").into(),
        details.into(),
    ]
}
