//! `make chaos`: real servers and real clients of one fleet, faults from a seeded schedule, and an oracle outside the
//! engine that knows what was acknowledged. At the end everything is healed, all work is finished, and the oracle
//! compares what was told with what is there.

mod clients;
mod follow;
mod oracle;
mod postgres;
mod proxy;
mod report;
mod scenarios;
mod schedule;
mod world;

use clients::{Client, Way};
use oracle::Oracle;
use postgres::Cluster;
use proxy::Mode;
pub use report::Report;
use rustix::process::Signal;
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

/// What is wrong, in words.
pub type Result<T, E = String> = std::result::Result<T, E>;

/// `map_err(said("what was tried"))`
fn said<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> String {
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
    /// Where fleets and clusters are made.
    pub scratch: PathBuf,
    pub seed: u64,
    /// How long faults happen. Healing and checking come after.
    pub span: Duration,
    /// The longest that a bystander may wait for what is ready; without one, waits are only reported.
    pub bound: Option<Duration>,
    /// Checks, scenarios and kinds of faults, by name.
    pub leave_out: Vec<String>,
}

impl Options {
    fn leaves_out(&self, name: &str) -> bool {
        self.leave_out.iter().any(|left| left == name)
    }
}

/// The scenarios on one database, and then the schedule of the seed.
pub async fn run(on: Database, options: &Options) -> Result<Report> {
    let (scenarios, violations) = scenarios::play(on, options).await?;
    let mut report = match options.span {
        Duration::ZERO => Report::empty(on, options.seed),
        _ => disturb(on, options).await?,
    };
    report.scenarios = scenarios;
    report.violations.splice(0..0, violations);
    Ok(report)
}

/// Runs the schedule of the seed.
async fn disturb(on: Database, options: &Options) -> Result<Report> {
    let mut schedule = Schedule::draw(options.seed, on, options.span);
    schedule.0.retain(|(_, fault)| !options.leaves_out(fault.kind()));
    eprint!("{on}, seed {}, {} faults:\n{schedule}", options.seed, schedule.0.len());
    let postgres = cluster(on, options).await?;
    let mut world = Arc::new(World::start(options, postgres, SERVERS).await?);
    let oracle = Arc::new(Oracle::default());
    let stop = Arc::new(AtomicBool::new(false));
    let client = |name: &str, way| Client::new(name, way, &world, &oracle, options.seed);
    let (mut sources, mut takers) = (JoinSet::new(), JoinSet::new());
    for n in 0..2 {
        sources.spawn(client(&format!("adder-{n}"), Way::Servers(n)).add(stop.clone()));
        sources.spawn(client(&format!("pusher-{n}"), Way::Servers(n + 1)).push(stop.clone()));
        takers.spawn(client(&format!("reader-{n}"), Way::Servers(n)).read());
        takers.spawn(client(&format!("locker-{n}"), Way::Servers(n + 1)).lock("one"));
    }
    for n in 0..3 {
        takers.spawn(client(&format!("worker-{n}"), Way::Servers(n)).work());
    }
    sources.spawn(client("command-adds", Way::Commands).add(stop.clone()));
    takers.spawn(client("command-works", Way::Commands).work());
    takers.spawn(client("poller", Way::Servers(1)).poll());
    let followers = [("event/list", follow::Seen::default()), ("/v1/events", follow::Seen::default())];
    sources.spawn(Client::probe(world.clone(), oracle.clone(), options.seed, stop.clone()));
    let mut watchers = JoinSet::new();
    watchers.spawn(follow::pages(client("follower", Way::Servers(2)), followers[0].1.clone()));
    watchers.spawn(follow::stream(world.clone(), followers[1].1.clone()));
    watchers.spawn(progress(on, options.span, oracle.clone()));

    let faults = inflict(&world, schedule).await?;
    stop.store(true, Ordering::Relaxed);
    let mut checker = client("checker", Way::Only(0));
    if timeout(PATIENCE, finish(sources, &mut checker)).await.is_err() {
        oracle.violated("everything was healed, and work is left that nobody is given".into());
    }
    takers.shutdown().await;
    oracle.verify(&mut checker, &followers, !options.leaves_out("order")).await;
    watchers.shutdown().await;
    oracle.doctor(&world).await;
    if options.bound.is_some_and(|bound| oracle.longest_wait() > bound) {
        oracle.violated(format!("a bystander waited {:?} for what was ready", oracle.longest_wait()));
    }
    let violations = oracle.violations();
    drop(checker);
    if !violations.is_empty()
        && let Some(world) = Arc::get_mut(&mut world)
    {
        eprintln!("the fleet and its servers' logs are in {}", world.keep().display());
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

/// Until nobody adds anything, and all that was added is finished.
async fn finish(sources: JoinSet<()>, checker: &mut Client) {
    sources.join_all().await;
    while oracle::unfinished(checker).await > 0 {
        sleep(Duration::from_millis(200)).await;
    }
}

/// Makes each fault happen at its time, and heals it after its span. Ends when all are healed.
async fn inflict(world: &Arc<World>, schedule: Schedule) -> Result<BTreeMap<&'static str, u64>> {
    let began = Instant::now();
    let mut counts = BTreeMap::new();
    let mut healing = JoinSet::new();
    let furthest = schedule.furthest_ahead();
    for (at, fault) in schedule.0 {
        sleep_until(began + at).await;
        *counts.entry(fault.kind()).or_default() += 1;
        let world = world.clone();
        healing.spawn(async move { suffer(&world, fault).await });
    }
    healing.join_all().await.into_iter().collect::<Result<()>>()?;
    world.set_ahead(furthest).await?;
    Ok(counts)
}

/// One fault, from its beginning to its end.
async fn suffer(world: &World, fault: Fault) -> Result<()> {
    let since = Instant::now();
    match fault {
        Fault::KillServer(server, down) => {
            world.kill(server).await;
            sleep(down).await;
            world.up(server).await?;
        }
        Fault::FreezeServer(server, span) => {
            world.signal(server, Signal::STOP).await;
            sleep(span).await;
            world.signal(server, Signal::CONT).await;
        }
        Fault::Delay(link, server, by, span) => world.disturb(server, link, Mode::Delay(by), span).await,
        Fault::Freeze(link, server, span) => world.disturb(server, link, Mode::Freeze, span).await,
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
        world.excuse(since);
    }
    // Whoever is stopped inside a write transaction of a SQLite file keeps everyone from writing: the docs say so.
    let stops = matches!(fault, Fault::FreezeServer(..) | Fault::FreezeCommand(_));
    if stops && world.on == Database::Sqlite {
        world.excuse(since);
    }
    Ok(())
}

/// A line that says how far it is: every second on a terminal, else every ten.
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
