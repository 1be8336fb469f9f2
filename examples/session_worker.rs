//! A session's worker that survives crashes, restarts and a faulty model client.
//!
//!     cargo run --example session_worker
//!
//! A hook pushes an agent's tool uses into a mailbox. A worker claims each message, prompts a model about it and stores
//! the model's observations in a table of its own, in the transaction that completes the message. The model's client is a
//! separate process that accepts prompts ahead and answers in JSON lines.
//!
//! These faults happen on the way, all of them real: the client drops a response; it sends one twice; it hangs, and the
//! worker is killed with SIGKILL meanwhile; and several times the context is full, so that the worker stops before
//! claiming and is restarted. At the end every message has its observations, once.
//!
//! One program has every role: it starts itself again as the hook, the worker and the model.

use fencepost::{Code, Fleet, Result, Row, mail, params};
use fencepost_client::{
    Connection,
    consumer::{Consumer, Message, Options, Prompts, Stop},
};
use serde::{Deserialize, Serialize};
use std::{
    error::Error,
    io::{Write, stdin, stdout},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{sleep, timeout},
};

type Anyhow<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const SESSION: &str = "session/42";
const MESSAGES: i64 = 24;
/// How many prompts the model's client accepts ahead.
const PREFETCH: usize = 3;
/// At this many tokens the context is full, and the worker must be restarted with a fresh one.
const TOKENS: u64 = 1_000;
/// The worker's exit code for such a restart.
const ROLLOVER: i32 = 10;
/// Short, so that the killed worker's messages come back soon.
const LEASE: Duration = Duration::from_secs(5);
/// All of it takes some seconds. Past this limit something hangs.
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> Anyhow {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => timeout(LIMIT, run_all()).await?,
        ["hook", database] => hook(database).await,
        ["worker", database, mishap] => worker(database, mishap).await,
        ["model", mishap] => model(mishap),
        _ => Err("this program is run without arguments".into()),
    }
}

// ---- The main program ----------------------------------------------------------------------------------------------

async fn run_all() -> Anyhow {
    let dir = tempfile::tempdir()?;
    let database = dir.path().join("fence.db").display().to_string();
    let fleet = Fleet::open(&database).await?;
    create_table(&fleet).await?;

    // The hook runs twice, as after a crash of unknown outcome. Each push has an idempotency key.
    for _ in 0..2 {
        let hook = start(&["hook", &database], Stdio::null())?.wait().await?;
        assert!(hook.success(), "the hook failed");
    }
    println!("hook: {MESSAGES} messages are in {SESSION}");

    let mut killed = 0;
    for life in 1.. {
        let mishap = ["drop", "add", "hang"].get(life - 1).unwrap_or(&"none");
        let mut worker = start(&["worker", &database, mishap], Stdio::piped())?;
        let mut lines = BufReader::new(worker.stdout.take().ok_or("no output")?).lines();
        while let Some(line) = lines.next_line().await? {
            println!("worker {life}: {line}");
            // Its model answered once and now hangs. After SIGKILL no handler runs and nothing is cleaned up.
            if *mishap == "hang" {
                while mailbox(&fleet).await?.processing == 0 {
                    sleep(Duration::from_millis(10)).await;
                }
                worker.start_kill()?;
            }
        }
        match worker.wait().await?.code() {
            Some(0) => break,
            Some(ROLLOVER) => {}
            Some(code) => return Err(format!("worker {life} failed: exit {code}").into()),
            None => {
                killed += 1;
                println!("worker {life} was killed with {}", count(&fleet).await?);
            }
        }
    }
    assert_eq!(killed, 1, "one worker is killed");
    summary(&fleet).await
}

/// Checks that every message is completed and has the observations of one completion only.
async fn summary(fleet: &Fleet) -> Anyhow {
    let rows = fleet.transaction(|tx| {
        Box::pin(tx.query(
            "select message, count(*) as n, min(text) as text from observation where message is not null
             group by message order by message",
            params![],
        ))
    });
    let rows: Vec<Row> = rows.await?;
    assert_eq!(rows.len() as i64, MESSAGES, "messages with observations");
    for row in &rows {
        let (message, n, text): (i64, i64, String) = (row.get("message")?, row.get("n")?, row.get("text")?);
        assert_eq!(n, 2, "message {message} has two observations");
        assert_eq!(text, observations(&tool_use(message))[0], "they are about message {message}");
    }
    println!("{MESSAGES} messages, each with its observations, once; {}", count(fleet).await?);
    Ok(())
}

async fn mailbox(fleet: &Fleet) -> Anyhow<mail::stats::Box> {
    let stats = mail::Stats { mailbox: Some(SESSION.into()), ..mail::Stats::default() };
    Ok(fleet.call(stats).await?.mailboxes.pop().ok_or("no mailbox")?)
}

async fn count(fleet: &Fleet) -> Anyhow<String> {
    let now = mailbox(fleet).await?;
    let pending = now.ready + now.waiting;
    Ok(format!("{} processed, {} in flight, {pending} pending", now.processed, now.processing))
}

/// Starts this program in another role.
fn start(role: &[&str], output: Stdio) -> Anyhow<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.args(role).stdout(output).kill_on_drop(true).spawn()?)
}

// ---- The hook: an agent used a tool ------------------------------------------------------------------------------

async fn hook(database: &str) -> Anyhow {
    let fleet = Fleet::open(database).await?;
    for n in 1..=MESSAGES {
        let key = Some(format!("tool-use-{n}"));
        fleet.call(mail::Push { key, ..mail::Push::new(SESSION, tool_use(n).as_str()) }).await?;
    }
    Ok(())
}

fn tool_use(n: i64) -> String {
    format!("Edit src/file{n}.rs")
}

// ---- The worker: claims, prompts, stores -------------------------------------------------------------------------

async fn worker(database: &str, mishap: &str) -> Anyhow {
    let fleet = Fleet::open(database).await?;
    let used = Arc::new(AtomicU64::new(0));
    let tokens = used.clone();
    let mut consumer = Consumer::start(
        &Connection::from(fleet.clone()),
        [SESSION],
        Options {
            prefetch: PREFETCH,
            ttl: LEASE,
            // Checked before each claim: pending messages stay pending.
            stop: Stop::when(move || tokens.load(Ordering::Relaxed) >= TOKENS),
            ..Options::default()
        },
    );
    let mut progress = consumer.progress();
    let (mut client, mut prompts) = open_client(mishap).await?;
    let stopped = loop {
        tokio::select! {
            // Sends prompts ahead, as many as may be in flight.
            message = consumer.next() => match message.transpose()? {
                Some(message) => {
                    let text = message.payload()?;
                    client.prompt(prompts.sent(message), text).await?;
                }
                None => break true,
            },
            answer = client.answer() => {
                if let Err(mismatch) = store_answer(&fleet, &mut prompts, answer?, &used).await? {
                    println!("{mismatch}; the client is restarted");
                    (client, prompts) = open_client("none").await?;
                }
            }
            // Nothing to claim and nothing in flight: all is done, or a killed worker still holds the rest.
            _ = progress.changed() => {
                let idle = progress.borrow_and_update().safe_to_restart();
                if idle && mailbox(&fleet).await?.processed == MESSAGES {
                    break false;
                }
            }
        }
    };
    // Finishes the messages in flight. Nothing more is claimed.
    while prompts.outstanding() > 0 {
        if let Err(mismatch) = store_answer(&fleet, &mut prompts, client.answer().await?, &used).await? {
            println!("{mismatch}");
        }
    }
    consumer.close().await;
    if stopped {
        println!(
            "stopped before claiming, at {} tokens: {}",
            used.load(Ordering::Relaxed),
            count(&fleet).await?
        );
        std::process::exit(ROLLOVER);
    }
    println!("nothing is left to do");
    Ok(())
}

/// Stores an answer of the model, and completes the message that it is about.
async fn store_answer(
    fleet: &Fleet,
    prompts: &mut Prompts,
    answer: Option<Answer>,
    used: &AtomicU64,
) -> Anyhow<Result<(), String>> {
    let Some(answer) = answer else { return Err("the model's client ended".into()) };
    let message = match prompts.response(answer.to).await {
        Ok(message) => message,
        // Everything in flight is pending again.
        Err(mismatch) => return Ok(Err(mismatch.to_string())),
    };
    used.fetch_add(answer.tokens, Ordering::Relaxed);
    match message {
        Some(message) => {
            let id = message.id;
            match store_and_complete(message, answer.observations).await {
                Ok(()) => println!("stored the observations of message {id}"),
                // The next holder asks the model again. Nothing of this answer is stored.
                Err(e) if matches!(e.code(), Code::LeaseExpired | Code::AlreadyFinished) => {
                    println!("lost message {id}: {e}");
                }
                Err(e) => return Err(e.into()),
            }
        }
        // The opening prompt has no message: its observations are stored, and nothing is completed.
        None => store(fleet, answer.observations).await?,
    }
    Ok(Ok(()))
}

async fn open_client(mishap: &str) -> Anyhow<(Client, Prompts)> {
    let (mut client, mut prompts) = (Client::start(mishap)?, Prompts::new());
    client.prompt(prompts.sent_without_message(), "You watch a coding session.".into()).await?;
    Ok((client, prompts))
}

// ---- The worker's own table --------------------------------------------------------------------------------------

async fn create_table(fleet: &Fleet) -> Result<()> {
    let sql = "create table observation(message bigint, text text not null)";
    fleet.transaction(move |tx| Box::pin(tx.execute(sql, params![]))).await.map(drop)
}

/// The observations and the completion commit together, or not at all.
async fn store_and_complete(message: Message, observations: Vec<String>) -> Result<()> {
    let id = message.id;
    message.complete_in(move |tx| insert(tx, Some(id), observations.clone())).await
}

async fn store(fleet: &Fleet, observations: Vec<String>) -> Result<()> {
    fleet.transaction(move |tx| insert(tx, None, observations.clone())).await
}

fn insert<'t>(
    tx: &'t mut fencepost::Tx<'_>,
    message: Option<i64>,
    observations: Vec<String>,
) -> fencepost::BoxFuture<'t, Result<()>> {
    Box::pin(async move {
        for text in observations {
            let sql = "insert into observation(message, text) values (?1, ?2)";
            tx.execute(sql, params![message, text]).await?;
        }
        Ok(())
    })
}

// ---- The model's client: a process that streams JSON -------------------------------------------------------------

#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    number: u64,
    text: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// The number of the prompt that it answers.
    to: u64,
    observations: Vec<String>,
    tokens: u64,
}

struct Client {
    prompts: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Client {
    fn start(mishap: &str) -> Anyhow<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["model", mishap]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let prompts = process.stdin.take().ok_or("no input")?;
        let answers = BufReader::new(process.stdout.take().ok_or("no output")?).lines();
        Ok(Self { prompts, answers, _process: process })
    }

    async fn prompt(&mut self, number: u64, text: String) -> Anyhow {
        Ok(self.prompts.write_all(line(&Ask { number, text })?.as_bytes()).await?)
    }

    async fn answer(&mut self) -> Anyhow<Option<Answer>> {
        let line = self.answers.next_line().await?;
        Ok(line.map(|line| serde_json::from_str(&line)).transpose()?)
    }
}

/// Accepts prompts ahead and answers in order. By `mishap` it drops its third answer, sends it twice, or hangs from there
/// on.
fn model(mishap: &str) -> Anyhow {
    let mut answers = stdout().lock();
    for prompt in stdin().lines() {
        let ask: Ask = serde_json::from_str(&prompt?)?;
        let times = match (mishap, ask.number) {
            ("drop", 3) | ("hang", 3..) => 0,
            ("add", 3) => 2,
            _ => 1,
        };
        let answer = Answer { to: ask.number, observations: observations(&ask.text), tokens: 150 };
        answers.write_all(line(&answer)?.repeat(times).as_bytes())?;
        answers.flush()?;
    }
    Ok(())
}

fn observations(text: &str) -> Vec<String> {
    vec![format!("1. the agent did: {text}"), format!("2. nothing strange about: {text}")]
}

fn line(value: &impl Serialize) -> Anyhow<String> {
    Ok(serde_json::to_string(value)? + "\n")
}
