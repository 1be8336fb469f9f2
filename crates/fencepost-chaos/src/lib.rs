//! `make chaos`: real servers and clients of one fleet, faults from a seeded schedule, and an oracle outside the engine
//! that records every acknowledgement. At the end all faults are healed and all work is finished, and the oracle
//! compares the acknowledgements with the fleet.

mod clients;
mod follow;
mod oracle;
mod postgres;
mod proxy;
mod report;
mod scenarios;
mod schedule;
mod world;

use clients::{Client, Target};
use oracle::Oracle;
use postgres::Cluster;
use proxy::Mode;
pub use report::Report;
use rustix::process::Signal;
pub use scenarios::names as scenario_names;
use schedule::{Fault, SERVERS, Schedule};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt,
    io::{IsTerminal, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use world::{PATIENCE, World};

/// An error is a text for people.
pub type Result<T, E = String> = std::result::Result<T, E>;

/// `map_err(context("what was tried"))`
fn context<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {error}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Database {
    Sqlite,
    Postgres,
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Database::Sqlite => "SQLite",
            Database::Postgres => "PostgreSQL",
        })
    }
}

#[derive(Debug, Clone)]
pub struct Options {
    /// The binary `chaos-fence`.
    pub fence: PathBuf,
    /// The directory for fleets and clusters.
    pub scratch: PathBuf,
    pub seed: u64,
    /// How long faults happen. Healing and checking come on top.
    pub span: Duration,
    /// The longest that a bystander may wait for a ready task. `None` only reports waits.
    pub bound: Option<Duration>,
    /// Names of checks, scenarios and kinds of faults.
    pub leave_out: Vec<String>,
}

impl Options {
    fn leaves_out(&self, name: &str) -> bool {
        self.leave_out.iter().any(|left| left == name)
    }
}

/// Plays the scenarios on one database, and then the seed's schedule.
pub async fn run(on: Database, options: &Options) -> Result<Report> {
    let played = play_scenarios(on, options).await?;
    if options.span.is_zero() {
        return Ok(played);
    }
    let mut report = run_schedule(on, options).await?;
    report.scenarios = played.scenarios;
    report.violations.splice(0..0, played.violations);
    Ok(report)
}

/// Plays the scenarios of this database.
pub async fn play_scenarios(on: Database, options: &Options) -> Result<Report> {
    let (scenarios, violations) = scenarios::play(on, options).await?;
    Ok(Report { scenarios, violations, ..Report::empty(on, options.seed) })
}

/// Runs the seed's schedule.
pub async fn run_schedule(on: Database, options: &Options) -> Result<Report> {
    let mut schedule = Schedule::draw(options.seed, on, options.span);
    schedule.0.retain(|(_, fault)| !options.leaves_out(fault.kind()));
    eprint!("{on}, seed {}, {} faults:\n{schedule}", options.seed, schedule.0.len());
    let postgres = cluster(on, options).await?;
    let mut world = Arc::new(World::start(options, postgres, SERVERS).await?);
    let oracle = Arc::new(Oracle::default());
    let stop = Arc::new(AtomicBool::new(false));
    let client = |name: &str, target| Client::new(name, target, &world, &oracle, options.seed);
    let (mut producers, mut workers) = (JoinSet::new(), JoinSet::new());
    for n in 0..2 {
        producers.spawn(client(&format!("adder-{n}"), Target::Servers(n)).add(stop.clone()));
        producers.spawn(client(&format!("pusher-{n}"), Target::Servers(n + 1)).push(stop.clone()));
        workers.spawn(client(&format!("reader-{n}"), Target::Servers(n)).read());
        workers.spawn(client(&format!("locker-{n}"), Target::Servers(n + 1)).lock("one"));
    }
    for n in 0..3 {
        workers.spawn(client(&format!("worker-{n}"), Target::Servers(n)).work());
    }
    producers.spawn(client("command-adds", Target::Commands).add(stop.clone()));
    workers.spawn(client("command-works", Target::Commands).work());
    workers.spawn(client("poller", Target::Servers(1)).poll());
    let followers =
        [("event/list", follow::Received::default()), ("/v1/events", follow::Received::default())];
    producers.spawn(Client::probe(world.clone(), oracle.clone(), options.seed, stop.clone()));
    let mut background = JoinSet::new();
    background.spawn(follow::pages(client("follower", Target::Servers(2)), followers[0].1.clone()));
    background.spawn(follow::stream(world.clone(), followers[1].1.clone()));
    background.spawn(progress(on, options.span, oracle.clone()));

    let faults = apply_all(&world, schedule).await?;
    stop.store(true, Ordering::Relaxed);
    let mut checker = client("checker", Target::Only(0));
    if timeout(PATIENCE, finish(producers, &mut checker)).await.is_err() {
        oracle.violated("all faults are healed, but some work is never claimed".into());
    }
    workers.shutdown().await;
    oracle.verify(&mut checker, &followers, !options.leaves_out("order")).await;
    background.shutdown().await;
    oracle.doctor(&world).await;
    if options.bound.is_some_and(|bound| oracle.longest_wait() > bound) {
        oracle.violated(format!("a bystander waited {:?} for a ready task", oracle.longest_wait()));
    }
    let violations = oracle.violations();
    drop(checker);
    if !violations.is_empty()
        && let Some(world) = Arc::get_mut(&mut world)
    {
        eprintln!("the fleet and its servers' logs are in {}", world.keep_files().display());
    }
    Ok(Report {
        database: on,
        seed: options.seed,
        seconds: options.span.as_secs(),
        counts: oracle.counts(),
        faults,
        longest_wait_ms: oracle.longest_wait().as_millis() as u64,
        scenarios: Vec::new(),
        violations: oracle::shortened(violations),
    })
}

async fn cluster(on: Database, options: &Options) -> Result<Option<Arc<Cluster>>> {
    Ok(match on {
        Database::Sqlite => None,
        Database::Postgres => Some(Arc::new(Cluster::start(&options.scratch.join("postgres")).await?)),
    })
}

/// Waits until the producers have ended and all their work is finished.
async fn finish(producers: JoinSet<()>, checker: &mut Client) {
    producers.join_all().await;
    while oracle::unfinished(checker).await > 0 {
        sleep(Duration::from_millis(200)).await;
    }
}

/// Applies each fault at its time and heals it after its span. Returns when all are healed.
async fn apply_all(world: &Arc<World>, schedule: Schedule) -> Result<BTreeMap<&'static str, u64>> {
    let began = Instant::now();
    let mut counts = BTreeMap::new();
    let mut healing = JoinSet::new();
    let furthest = schedule.furthest_ahead();
    for (at, fault) in schedule.0 {
        sleep_until(began + at).await;
        *counts.entry(fault.kind()).or_default() += 1;
        let world = world.clone();
        healing.spawn(async move { apply(&world, fault).await });
    }
    healing.join_all().await.into_iter().collect::<Result<()>>()?;
    world.set_ahead(furthest).await?;
    Ok(counts)
}

/// Applies one fault and heals it.
async fn apply(world: &World, fault: Fault) -> Result<()> {
    let since = Instant::now();
    match fault {
        Fault::KillServer(server, down) => {
            world.kill(server).await;
            sleep(down).await;
            world.start_server(server).await?;
        }
        Fault::FreezeServer(server, span) => {
            world.signal(server, Signal::STOP).await;
            sleep(span).await;
            world.signal(server, Signal::CONT).await;
        }
        Fault::Delay(link, server, by, span) => world.set_link(server, link, Mode::Delay(by), span).await,
        Fault::Freeze(link, server, span) => world.set_link(server, link, Mode::Freeze, span).await,
        Fault::Cut(link, server) => world.servers[server].link(link).cut(),
        Fault::SetClock(ms) => world.set_ahead(ms).await?,
        Fault::CrashPostgres => {
            if let Some(cluster) = &world.postgres {
                cluster.crash().await?;
            }
        }
        Fault::KillCommand => drop(world.signal_command(None, Signal::KILL)),
        Fault::FreezeCommand(span) => {
            if let Some(command) = world.signal_command(None, Signal::STOP) {
                sleep(span).await;
                world.signal_command(Some(command), Signal::CONT);
            }
        }
    }
    if fault == Fault::CrashPostgres {
        world.add_outage(since);
    }
    // A process that is stopped inside a write transaction of a SQLite file blocks all writers: the docs say so.
    let freezes = matches!(fault, Fault::FreezeServer(..) | Fault::FreezeCommand(_));
    if freezes && world.on == Database::Sqlite {
        world.add_outage(since);
    }
    Ok(())
}

/// Prints a line of progress: every second on a terminal, else every ten.
async fn progress(on: Database, span: Duration, oracle: Arc<Oracle>) {
    let began = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    loop {
        sleep(Duration::from_secs(if terminal { 1 } else { 10 })).await;
        let counts = oracle.counts();
        let count = |name| counts.get(name).copied().unwrap_or_default();
        let line = format!(
            "{on}: {} of {} s, {} claims, {} completions, longest wait {} ms, {} violations",
            began.elapsed().as_secs(),
            span.as_secs(),
            count("claims"),
            count("completions"),
            oracle.longest_wait().as_millis(),
            oracle.violations().len(),
        );
        let _ = match terminal {
            true => write!(std::io::stderr(), "\r{line}\x1b[K"),
            false => writeln!(std::io::stderr(), "{line}"),
        };
    }
}
