//! The schedule of faults. It is drawn before anything runs, so the same seed gives the same schedule.

use crate::{Database, world::Link};
use fastrand::Rng;
use std::{fmt, time::Duration};

/// The servers of a world. Faults hit all but the first, whose clients are the bystanders.
pub const SERVERS: usize = 3;

/// A fault, and how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// SIGKILL, and a new start after the span.
    KillServer(usize, Duration),
    /// SIGSTOP, and SIGCONT after the span.
    FreezeServer(usize, Duration),
    /// SIGKILL of a command line.
    KillCommand,
    FreezeCommand(Duration),
    /// A server's connections are slow, are cut, or stand still.
    Delay(Link, usize, Duration, Duration),
    Cut(Link, usize),
    Freeze(Link, usize, Duration),
    /// PostgreSQL is stopped at once and started again.
    CrashPostgres,
    /// The fleet's clock is this far ahead of the machine's from now on, in milliseconds.
    SetClock(i64),
}

impl Fault {
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::KillServer(..) => "server killed",
            Fault::FreezeServer(..) => "server frozen",
            Fault::KillCommand => "command killed",
            Fault::FreezeCommand(_) => "command frozen",
            Fault::Delay(..) => "connections delayed",
            Fault::Cut(..) => "connections cut",
            Fault::Freeze(..) => "connections frozen",
            Fault::CrashPostgres => "PostgreSQL crashed",
            Fault::SetClock(_) => "clock set",
        }
    }

    /// The target that no second fault may hit at the same time, and for how long.
    fn busy(&self) -> (usize, Duration) {
        match *self {
            Fault::KillServer(server, span) | Fault::FreezeServer(server, span) => (server, span),
            Fault::KillCommand => (COMMANDS, Duration::ZERO),
            Fault::FreezeCommand(span) => (COMMANDS, span),
            Fault::Delay(link, server, _, span) | Fault::Freeze(link, server, span) => {
                (link_of(link, server), span)
            }
            Fault::Cut(link, server) => (link_of(link, server), Duration::ZERO),
            // It is down for a second or two. With more crashes than this, no other fault would show.
            Fault::CrashPostgres => (DATABASE, Duration::from_secs(10)),
            Fault::SetClock(_) => (CLOCK, Duration::from_secs(3)),
        }
    }
}

const COMMANDS: usize = SERVERS;
const DATABASE: usize = COMMANDS + 1;
const CLOCK: usize = DATABASE + 1;
const LINKS: usize = CLOCK + 1;
const TARGETS: usize = LINKS + 2 * SERVERS;

fn link_of(link: Link, server: usize) -> usize {
    LINKS + server + if link == Link::Database { SERVERS } else { 0 }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Schedule(pub Vec<(Duration, Fault)>);

impl Schedule {
    pub fn draw(seed: u64, on: Database, span: Duration) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut faults = Vec::new();
        let mut free = [Duration::ZERO; TARGETS];
        let mut at = Duration::from_millis(500);
        while at < span {
            let fault = Self::fault(&mut rng, on, span);
            let (target, busy) = fault.busy();
            if free[target] <= at {
                free[target] = at + busy + Duration::from_millis(500);
                faults.push((at, fault));
            }
            at += Duration::from_millis(rng.u64(200..1500));
        }
        Self(faults)
    }

    fn fault(rng: &mut Rng, on: Database, span: Duration) -> Fault {
        let server = rng.usize(1..SERVERS);
        let frozen = frozen(rng, on, span);
        let down = Duration::from_millis(rng.u64(0..2000));
        let link = match on {
            Database::Postgres if rng.bool() => Link::Database,
            _ => Link::Clients,
        };
        match rng.u32(0..16) {
            0..2 => Fault::KillServer(server, down),
            2..4 => Fault::FreezeServer(server, frozen),
            4..6 => Fault::KillCommand,
            6..8 => Fault::FreezeCommand(frozen),
            8..10 => Fault::Delay(link, server, Duration::from_millis(rng.u64(1..100)), down * 3),
            10..12 => Fault::Cut(link, server),
            12..14 => Fault::Freeze(link, server, frozen),
            14 if on == Database::Postgres => Fault::CrashPostgres,
            _ => Fault::SetClock(rng.i64(-JUMP..JUMP)),
        }
    }

    /// The furthest that the clock ever was ahead. At the end the clock is set there: the fleet's time never goes back, and
    /// would otherwise stand still for longer than clients wait.
    pub fn furthest_ahead(&self) -> i64 {
        let ahead = self.0.iter().map(|(_, fault)| if let Fault::SetClock(ms) = fault { *ms } else { 0 });
        ahead.max().unwrap_or(0)
    }
}

/// Ten minutes.
const JUMP: i64 = 600_000;

/// Mostly short; one in five is long enough to reach the limits of the engine (10 s between two statements, 30 s for a
/// call). On SQLite it is shorter, because a process that is stopped inside a write transaction blocks every writer.
fn frozen(rng: &mut Rng, on: Database, span: Duration) -> Duration {
    let long = match on {
        Database::Sqlite => 5_000,
        Database::Postgres => 40_000,
    };
    let long = (span.as_millis() as u64 / 6).clamp(2_000, long);
    let short = Duration::from_millis(rng.u64(100..2_000));
    let long = Duration::from_millis(rng.u64(1_000..=long));
    if rng.u32(0..5) == 0 { long } else { short }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(at, fault)| writeln!(f, "{:>8.1} s  {fault:?}", at.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_repeats_its_schedule_and_leaves_the_bystander_alone() {
        for on in [Database::Sqlite, Database::Postgres] {
            let draw = |seed| Schedule::draw(seed, on, Duration::from_secs(600));
            assert_eq!(draw(7), draw(7));
            assert_ne!(draw(7), draw(8));
            let hit: Vec<_> = draw(7).0.iter().map(|(_, fault)| fault.busy().0).collect();
            let bystanders = [0, link_of(Link::Clients, 0), link_of(Link::Database, 0)];
            assert!(!hit.iter().any(|target| bystanders.contains(target)), "{hit:?}");
            let kinds: BTreeSet<_> = draw(7).0.iter().map(|(_, fault)| fault.kind()).collect();
            assert_eq!(kinds.len(), if on == Database::Postgres { 9 } else { 8 }, "{kinds:?}");
        }
    }
}
