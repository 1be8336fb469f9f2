mod source;
mod stuck;

use super::demo::cast::STAGE;
use crate::{
    context::Context,
    environment::variable,
    supervise::exit_code,
    view::{
        Input, Screen,
        fleet::{self, FleetView, Look},
    },
};
use clap::Args;
use fencepost::Result;
use rustix::process::{Signal, set_parent_process_death_signal};
use source::{Reading, Source, is_final};
use std::{process::ExitCode, time::Duration};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    // Real time: it limits how often the fleet is asked and the terminal drawn.
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};

/// Watch the whole fleet: running work, what is stuck and why, agents, boards, the last events
///
/// The view changes when something happens in the fleet: it waits for events and does not poll. A line under `stuck` is work that
/// goes on only if somebody does something, with a command that would help. If the fleet does not answer, the view says so, and
/// goes on when the fleet is back.
///
/// Where standard output is no terminal, or with --once or --json, it prints the same as one page and ends.
///
/// Keys: up, down, page up, page down, home and end scroll; q or Ctrl-C ends it.
///
/// Examples:
///   fence top
///   fence --url https://fleet.example.com top
///   fence top --once
///   fence top --json | jq '.stuck[] | [.what, .why]'
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Top {
    /// Print one page, and end
    #[arg(long)]
    once: bool,
}

/// Events on a page, and the most on a terminal.
const ON_A_PAGE: i64 = 10;
const ON_A_SCREEN: i64 = 100;
/// The fleet is read at most four times a second, and a large fleet for a fifth of the time at most.
const PAUSE: Duration = Duration::from_millis(250);
const SHARE: u32 = 4;
/// How often a fleet that does not answer is asked.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl Top {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if variable(STAGE).is_some() {
            // If the demo is killed, its view ends, and restores the terminal.
            let _ = set_parent_process_death_signal(Some(Signal::TERM));
        }
        let is_live = !self.once && !context.json() && context.terminal.width().is_some();
        let connection = context.connection().await?.clone();
        let events = if is_live { ON_A_SCREEN } else { ON_A_PAGE };
        let mut source = Source::open(connection, context.location()?.shown(), events).await?;
        let reading = source.read().await?;
        let screen = if is_live { Screen::open()? } else { None };
        let Some(screen) = screen else {
            return context.print(&reading.view, |view| fleet::page(view, &context.terminal));
        };
        // From now on an outage is shown at once, and not after the retries.
        source.connection = source.connection.without_retries();
        live(source, reading, screen).await
    }
}

/// Draws the view until a key or a signal ends it.
async fn live(source: Source, first: Reading, mut screen: Screen) -> Result<ExitCode> {
    let (sender, mut readings) = mpsc::channel(1);
    let (mut view, mut look) = (first.view.clone(), Look::default());
    // Dropping the set ends the task.
    let mut reader = JoinSet::new();
    reader.spawn(keep_reading(source.clone(), first, sender));
    let mut tick = interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        screen.draw(|frame| fleet::draw(frame, &view, &mut look, source.now()))?;
        tokio::select! {
            biased;
            input = screen.next() => match input {
                Input::Key(key) if fleet::key(&mut look, key) => return Ok(ExitCode::SUCCESS),
                Input::Key(_) | Input::Redraw => {}
                Input::Signal(signal) => return Ok(exit_code(signal)),
            },
            Some(reading) = readings.recv() => match reading {
                Ok(reading) => (view, look.outage) = (reading, None),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => look.outage = Some(error.message().to_owned()),
            },
            _ = tick.tick() => {}
        }
    }
}

/// Reads the fleet whenever something has happened, or a deadline has passed.
async fn keep_reading(source: Source, mut last: Reading, readings: mpsc::Sender<Result<FleetView>>) {
    let mut is_answering = true;
    loop {
        let news = match is_answering {
            true => wait_for_news(&source, &last).await,
            false => {
                sleep(TRY_AGAIN).await;
                Ok(())
            }
        };
        let began = Instant::now();
        let reading = match news {
            Ok(()) => source.read().await,
            Err(error) => Err(error),
        };
        is_answering = reading.is_ok();
        let view = reading.map(|reading| {
            last = reading;
            last.view.clone()
        });
        if readings.send(view).await.is_err() {
            return;
        }
        sleep_until(began + PAUSE.max(began.elapsed() * SHARE)).await;
    }
}

/// Returns when the reading is no longer true.
async fn wait_for_news(source: &Source, last: &Reading) -> Result<()> {
    let stale = async {
        match last.stale_at {
            // A moment later, so that the deadline has passed on the fleet's clock, too.
            Some(at) => sleep(Duration::from(at.since(source.now())) + PAUSE).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        news = source.news(&last.position) => news,
        () = stale => Ok(()),
    }
}
