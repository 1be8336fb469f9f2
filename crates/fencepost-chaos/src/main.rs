//! `make chaos`: see the library beside this file.

use clap::{Parser, ValueEnum};
use fencepost_chaos::{Database, Options, run};
use std::{path::PathBuf, process::ExitCode, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// Break servers, connections, databases and clocks, and check what was promised
#[derive(Debug, Parser)]
struct Args {
    /// How long faults happen on each database
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of the schedule; the same seed repeats it [default: random]
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, value_enum, default_value_t = On::Both)]
    database: On,
    /// The longest that a bystander may wait for a ready task, in seconds
    #[arg(long, default_value_t = 15)]
    bound: u64,
    /// Print the reports as JSON
    #[arg(long)]
    json: bool,
    /// Another `fence` binary, such as a release; its own clock does not jump
    #[arg(long, value_name = "FILE")]
    fence: Option<PathBuf>,
    /// Scenarios, kinds of faults and checks to leave out, separated by commas: `order,clock set`
    #[arg(long, value_delimiter = ',')]
    leave_out: Vec<String>,
    /// The directory for fleets
    #[arg(long, default_value = "target/chaos")]
    scratch: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum On {
    Sqlite,
    Postgres,
    Both,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let databases = match args.database {
        On::Sqlite => vec![Database::Sqlite],
        On::Postgres => vec![Database::Postgres],
        On::Both => vec![Database::Sqlite, Database::Postgres],
    };
    let mut term = signal(SignalKind::terminate()).expect("signals can be received");
    tokio::select! {
        clean = all(args, databases) => ExitCode::from(u8::from(!clean)),
        // Dropping the run ends every process that it started.
        _ = tokio::signal::ctrl_c() => ExitCode::from(130),
        _ = term.recv() => ExitCode::from(143),
    }
}

async fn all(args: Args, databases: Vec<Database>) -> bool {
    let me = std::env::current_exe().expect("this program");
    let options = Options {
        fence: args.fence.unwrap_or_else(|| me.with_file_name("chaos-fence")),
        scratch: std::path::absolute(&args.scratch).expect("a path"),
        seed: args.seed.unwrap_or_else(|| fastrand::u64(0..1_000_000)),
        span: Duration::from_secs(args.seconds),
        bound: Some(Duration::from_secs(args.bound)),
        leave_out: args.leave_out,
    };
    let mut clean = true;
    let mut reports = Vec::new();
    for on in databases {
        match run(on, &options).await {
            Ok(report) => {
                clean &= report.is_clean();
                eprintln!();
                if !args.json {
                    println!("{report}");
                }
                reports.push(report);
            }
            Err(error) => {
                eprintln!("error: {error}");
                clean = false;
            }
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&reports).unwrap_or_default());
    }
    clean
}
