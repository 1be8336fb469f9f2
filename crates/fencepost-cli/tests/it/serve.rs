//! `fence serve` as a real process on a free port: sockets, signals, clients that hang up.

use crate::{
    on_both,
    sealed::{Sealed, eventually},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

/// A server process, ended with the test.
pub struct Served {
    child: Child,
    /// Its log, read all the time: a full pipe would block the writer.
    log: Arc<Mutex<String>>,
    reading: Option<JoinHandle<()>>,
    pub address: String,
}

impl Served {
    pub fn start(sealed: &Sealed, words: &[&str]) -> Self {
        Self::start_with(sealed, words, &[])
    }

    /// Starts a server with these variables.
    pub fn start_with(sealed: &Sealed, words: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = sealed.command("fence");
        command.envs(variables.iter().copied());
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(words);
        Self::run(command)
    }

    /// The server that this command starts.
    pub fn run(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("fence serve");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, seen) = (child.stderr.take().expect("its log"), log.clone());
        let reading = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let line = line.expect("text");
                *seen.lock().expect("the log") += &(line + "\n");
            }
        });
        let address = line.trim().rsplit_once("//").expect("where it listens").1.to_owned();
        Self { child, log, reading: Some(reading), address }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("a pid");
        kill_process(pid, signal).expect("sent");
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        stream
    }

    /// Sends a request without reading the reply.
    pub fn send(&self, op: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let mut stream = self.connect();
        let head = format!(
            "POST /v1/{op} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).expect("sent");
        stream
    }

    /// Sends the head of a request. The server waits for the body.
    fn begin(&self, op: &str, length: usize) -> TcpStream {
        let mut stream = self.connect();
        let head = format!(
            "POST /v1/{op} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
             Content-Length: {length}\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let mut go_on = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        stream.read_exact(&mut go_on).expect("to be told to go on");
        stream
    }

    pub fn call(&self, op: &str, body: Value) -> (u16, Value) {
        answer(self.send(op, &body))
    }

    /// The number of waiters in the metrics of the server.
    pub fn waiting(&self) -> u64 {
        waiting(&self.address)
    }

    pub fn wait(&mut self) -> ExitStatus {
        eventually("the server ends", || self.child.try_wait().expect("its state"))
    }

    pub fn log(mut self) -> String {
        self.signal(Signal::TERM);
        self.wait();
        self.reading.take().expect("its log").join().expect("its log");
        self.log.lock().expect("the log").clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number of waiters in the metrics of the server at this address.
pub fn waiting(address: &str) -> u64 {
    let text = metrics(address);
    let line = text.lines().find_map(|line| line.strip_prefix("fence_waiters ")).expect("the gauge");
    line.parse().expect("a number")
}

/// The metrics of the server at this address.
pub fn metrics(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

/// The status and the body of one answer.
pub fn answer(stream: TcpStream) -> (u16, Value) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a header");
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// A claim that has to wait: somebody else holds the task.
fn busy(sealed: &Sealed) {
    sealed.ok(&["init"]);
    sealed.ok(&["add", "held", "--board", "auth"]);
    sealed.ok(&["--run", "other", "claim", "auth-1"]);
}

on_both! {
    without a server:

    fn a_client_that_hangs_up_while_it_waits_is_forgotten(sealed: Sealed) {
        busy(&sealed);
        let server = Served::start(&sealed, &[]);
        let waiting = server.send("task/claim", &json!({ "run": "gone", "wait_ms": 600_000 }));
        eventually("it waits", || (server.waiting() == 1).then_some(()));
        drop(waiting);
        eventually("its place is free", || (server.waiting() == 0).then_some(()));
        sealed.ok(&["add", "fresh", "--board", "auth"]);
        let (status, claimed) = server.call("task/claim", json!({ "run": "here" }));
        assert_eq!((status, &claimed["claim"]["token"]), (200, &json!("task/auth-2@1")), "nobody took it for the other");
    }

    /// Work from the command line, in another process, wakes a waiter at the server.
    fn work_of_another_process_wakes_a_waiter(sealed: Sealed) {
        busy(&sealed);
        let server = Served::start(&sealed, &[]);
        let waiting = server.send("task/claim", &json!({ "run": "r", "wait_ms": 600_000 }));
        eventually("it waits", || (server.waiting() == 1).then_some(()));
        sealed.ok(&["add", "fresh", "--board", "auth"]);
        let (status, claimed) = answer(waiting);
        assert_eq!((status, &claimed["claim"]["token"]), (200, &json!("task/auth-2@1")));
    }

    /// A delay and a dead run's lease produce no write: time alone makes them due.
    fn a_waiter_wakes_for_what_is_due_by_time_alone(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "held", "--board", "auth"]);
        let server = Served::start(&sealed, &[]);
        let (status, _) = server.call("task/claim", json!({ "run": "dead", "ttl_ms": 1000 }));
        assert_eq!(status, 200);
        let (status, claimed) = server.call("task/claim", json!({ "run": "r", "wait_ms": 30_000 }));
        assert_eq!((status, &claimed["claim"]["token"]), (200, &json!("task/auth-1@2")));
    }

    fn a_thousand_wait_for_one_task_and_one_gets_it(sealed: Sealed) {
        busy(&sealed);
        let server = Served::start(&sealed, &[]);
        let waiting: Vec<_> = (0..1000)
            .map(|n| server.send("task/claim", &json!({ "run": format!("r-{n}"), "wait_ms": 600_000 })))
            .collect();
        eventually("all wait", || (server.waiting() == 1000).then_some(()));
        sealed.ok(&["add", "fresh", "--board", "auth"]);
        eventually("one has it", || (server.waiting() == 999).then_some(()));
        // The other waiters are refused when the server stops, so that every reply arrives.
        server.signal(Signal::TERM);
        let mut answers: Vec<u16> = waiting.into_iter().map(|stream| answer(stream).0).collect();
        answers.sort_unstable();
        assert_eq!((answers[0], answers[1], answers[999]), (200, 503, 503), "exactly one got it");
    }

    fn the_first_signal_lets_finish_and_the_second_ends_at_once(sealed: Sealed) {
        busy(&sealed);
        let mut server = Served::start(&sealed, &[]);
        let waiting = server.send("task/claim", &json!({ "run": "r", "wait_ms": 600_000 }));
        eventually("it waits", || (server.waiting() == 1).then_some(()));
        // A half-sent request keeps the server running.
        let _half = server.begin("task/add", 30);
        server.signal(Signal::TERM);
        let (status, refused) = answer(waiting);
        assert_eq!((status, &refused["error"]["code"]), (503, &json!("unavailable")), "{refused}");
        eventually("nobody is let in", || TcpStream::connect(&server.address).is_err().then_some(()));
        assert!(server.child.try_wait().expect("its state").is_none(), "it waits for open requests");
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(143));
    }

    fn open_requests_are_finished_before_the_server_ends(sealed: Sealed) {
        sealed.ok(&["init"]);
        let mut server = Served::start(&sealed, &[]);
        let body = json!({ "board": "auth", "title": "one" }).to_string();
        let mut half = server.begin("task/add", body.len());
        server.signal(Signal::TERM);
        eventually("nobody is let in", || TcpStream::connect(&server.address).is_err().then_some(()));
        half.write_all(body.as_bytes()).expect("sent");
        assert_eq!(answer(half).0, 200);
        assert_eq!(server.wait().code(), Some(0));
        sealed.ok(&["show", "auth-1"]);
    }

    fn every_request_is_one_line_of_the_log(sealed: Sealed) {
        sealed.ok(&["init"]);
        let server = Served::start(&sealed, &[]);
        server.call("task/add", json!({ "board": "auth", "title": "one" }));
        server.call("task/claim", json!({ "run": "r-1", "agent": "codex", "task": "auth-1" }));
        server.call("task/claim", json!({ "run": "r-2", "task": "auth-1" }));
        server.call("task/dance", json!({}));
        let log = server.log();
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let told: Vec<_> = lines
            .iter()
            .filter(|line| line["target"] == "fence::request")
            .map(|line| json!([line["op"], line["agent"], line["run"], line["outcome"], line["path"], line["ms"].is_f64()]))
            .collect();
        let wanted = json!([
            ["task/add", null, null, "ok", null, true],
            ["task/claim", "codex", "r-1", "ok", null, true],
            ["task/claim", null, "r-2", "already_claimed", null, true],
            [null, null, null, "not_found", "/v1/task/dance", false],
        ]);
        assert_eq!(Value::from(told), wanted, "{log}");
    }
}

/// A pipe that nobody reads holds some 300 lines.
#[test]
fn a_log_that_nobody_reads_blocks_nothing() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let mut command = sealed.command("fence");
    command.args(["serve", "--listen", "127.0.0.1:0"]).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fence serve");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let unread = child.stderr.take().expect("its log");
    let address = line.trim().rsplit_once("//").expect("where it listens").1.to_owned();
    let mut server = Served { child, log: Arc::default(), reading: None, address };
    for _ in 0..1000 {
        assert_eq!(server.call("admin/about", json!({})).0, 200);
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    drop(unread);
}

/// The largest plan is accepted. A larger body is refused with a reason, and read to its end.
#[test]
fn a_large_plan_is_taken_or_refused_clearly() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let plan: String =
        (0..10_000).map(|n| format!("{{\"title\":\"{n}\",\"body\":\"{}\"}}\n", "x".repeat(500))).collect();
    let server = Served::start(&sealed, &[]);
    let there = sealed.over(&format!("http://{}", server.address));
    std::fs::write(there.path().join("plan.jsonl"), &plan).expect("written");
    let added = there.ok(&["add", "-f", "plan.jsonl", "--board", "auth"]);
    assert_eq!(added.lines().filter(|line| line.starts_with("auth-")).count(), 10_000);

    let small = Served::start(&sealed, &["--body-size", "1000000"]);
    let there = sealed.over(&format!("http://{}", small.address));
    std::fs::write(there.path().join("plan.jsonl"), &plan).expect("written");
    let refused = there.fence(&["add", "-f", "plan.jsonl", "--board", "more"]);
    insta::assert_snapshot!(format!("{} (exit {})", refused.err, refused.code), @r"
    error: the request is larger than 1000000 bytes
    hint: send less at once, or let the server take more: fence serve --body-size (exit 1)
    ");
    // This client reads the reply only after it has sent everything.
    let mut slow = small.connect();
    write!(
        slow,
        "POST /v1/task/plan HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        small.address,
        plan.len()
    )
    .expect("sent");
    for piece in plan.as_bytes().chunks(100_000) {
        slow.write_all(piece).expect("it is taken");
    }
    assert_eq!(answer(slow).0, 413);
}

/// The server accepts as many connections as it has file handles, refuses the others with a reason, and goes on.
#[test]
fn few_file_handles_stop_nobody_for_long() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let mut command = sealed.command("sh");
    command.args(["-c", "ulimit -n 64; exec fence serve --listen 127.0.0.1:0 --header-time 2s"]);
    let server = Served::run(command);
    let silent: Vec<_> = (0..100).map(|_| server.connect()).collect();
    let replies = silent.into_iter().map(|mut stream| {
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("it ends");
        reply
    });
    let full = replies
        .filter(|reply| {
            reply.starts_with("HTTP/1.1 503 ") && reply.contains("the limit of 16 connections is reached")
        })
        .count();
    assert!(full > 0, "some are refused with a reason");
    eventually("others are served", || (server.call("admin/about", json!({})).0 == 200).then_some(()));
    let log = server.log();
    assert!(log.contains("at most 16 connections instead of 8192"), "{log}");
}

#[test]
fn slow_and_large_heads_are_cut_off() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let impatient = Served::start(&sealed, &["--header-time", "200ms"]);
    let mut slow = impatient.connect();
    // The timeout may be over before we have sent anything.
    let _ = slow.write_all(b"POST /v1/task/add HTTP/1.1\r\nHost: 127");
    let mut said = String::new();
    if let Err(e) = slow.read_to_string(&mut said) {
        assert!(matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{e}");
    }
    assert!(said.is_empty() || said.contains(" 408 "), "{said}");
    let server = Served::start(&sealed, &["--header-size", "8192", "--body-time", "200ms"]);
    let mut large = server.connect();
    let _ = write!(large, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n", "x".repeat(20_000));
    let _ = large.shutdown(Shutdown::Write);
    said.clear();
    let _ = large.read_to_string(&mut said);
    assert!(said.contains(" 431 "), "{said}");
    let mut body = server.connect();
    write!(body, "POST /v1/task/add HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{", server.address).expect("sent");
    assert_eq!(answer(body).0, 408);
    assert_eq!(server.call("admin/about", json!({})).0, 200, "others are served");
}

#[test]
fn a_server_says_why_it_does_not_start() {
    let sealed = Sealed::sqlite();
    let nothing = sealed.fence(&["serve", "--listen", "127.0.0.1:0"]);
    sealed.ok(&["init"]);
    let open = sealed.fence(&["serve", "--listen", "0.0.0.0:0"]);
    let named = sealed.fence(&["serve", "--listen", "127.0.0.1:0", "--name", "fleet.example"]);
    let taken = Served::start(&sealed, &[]);
    let twice = sealed.fence(&["serve", "--listen", &taken.address]);
    let cert =
        sealed.fence(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", "no.pem", "--tls-key", "no.key"]);
    let said = [nothing, open, named, twice, cert].map(|said| format!("{} (exit {})", said.err, said.code));
    let said = said
        .join("\n\n")
        .replace(&taken.address, "ADDRESS")
        .replace(&sealed.path().display().to_string(), "DIR");
    insta::assert_snapshot!(said);
}

/// The reply of the server to a client that trusts only this certificate.
fn by_tls(sealed: &Sealed, server: &Served, trusted: &str) -> String {
    let script = format!(
        "printf 'GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' |
         openssl s_client -connect {} -CAfile {trusted} -verify_return_error -quiet -ign_eof",
        server.address
    );
    sealed.sh(&script).out
}

#[test]
fn it_speaks_tls_and_reads_a_renewed_certificate() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let make = |name: &str| {
        let made = sealed.sh(&format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
             -keyout {name}.key -out {name}.pem"
        ));
        assert_eq!(made.code, 0, "{made:?}");
    };
    make("old");
    make("new");
    sealed.sh("cp old.pem cert.pem && cp old.key cert.key");
    let server = Served::start(&sealed, &["--tls-cert", "cert.pem", "--tls-key", "cert.key"]);
    assert!(by_tls(&sealed, &server, "old.pem").contains("{\"ok\":true}"));
    assert!(!by_tls(&sealed, &server, "new.pem").contains("{\"ok\":true}"), "another's certificate");
    sealed.sh("cp new.pem cert.pem && cp new.key cert.key");
    server.signal(Signal::HUP);
    eventually("the new one is presented", || {
        by_tls(&sealed, &server, "new.pem").contains("{\"ok\":true}").then_some(())
    });
    // An invalid certificate changes nothing.
    sealed.sh("echo nonsense > cert.pem");
    server.signal(Signal::HUP);
    let shown = || server.log.lock().expect("the log").contains("the certificate stays as it was");
    eventually("the error is logged", || shown().then_some(()));
    assert!(by_tls(&sealed, &server, "new.pem").contains("{\"ok\":true}"));
}
