//! A sealed environment: an empty git repository, no inherited variables, and a new fleet.

use fencepost_testing::postgres;
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

pub struct Sealed {
    dir: tempfile::TempDir,
    db: Option<String>,
    /// The server of the fleet, if commands do not open it themselves.
    server: Option<Box<Server>>,
}

/// `fence serve` on a free port, and the environment that its fleet is in.
struct Server {
    world: Sealed,
    running: Mutex<Serving>,
}

impl Server {
    fn of(world: Sealed) -> Self {
        world.ok(&["init"]);
        Self { running: Mutex::new(Serving::start(&world, &[])), world }
    }
}

/// An address for a server that goes away and comes back. Its port is below those that a system gives to outgoing
/// connections: one of another test could take it meanwhile.
pub fn lasting_address() -> String {
    // Each test of this process gets another port, and a repetition does not meet connections of the one before.
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(..)));
    let address = || format!("127.0.0.1:{}", 20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 6_000);
    let free = |address: &String| std::net::TcpListener::bind(address).is_ok();
    std::iter::repeat_with(address).find(free).expect("a free port")
}

/// A server process. Dropping this value ends it.
pub struct Serving {
    pub url: String,
    child: Child,
}

impl Serving {
    pub fn start(world: &Sealed, words: &[&str]) -> Self {
        let mut serve = world.command("fence");
        let anywhere: &[&str] = if words.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        serve.arg("serve").args(anywhere).args(words).stdin(Stdio::null());
        let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("fence serve");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let url = line.trim().rsplit(' ').next().filter(|url| url.starts_with("http://"));
        Self { url: url.unwrap_or_else(|| panic!("it said: {line}")).to_owned(), child }
    }

    /// Ends it as a power cut does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The output and the exit code of a command.
#[derive(Debug)]
pub struct Finished {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Sealed {
    /// The embedded database, where `fence init` puts it.
    pub fn sqlite() -> Self {
        // Independent of the test's umask: keepers' files need a directory that nobody else can write.
        let ours = std::fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(ours).tempdir().expect("a directory");
        let sealed = Self { dir, db: None, server: None };
        let made = sealed.command("git").args(["init", "-q"]).status().expect("git");
        assert!(made.success(), "git init: {made}");
        sealed
    }

    /// A schema that no other test uses.
    pub fn postgres() -> Self {
        Self { db: Some(postgres::url(&postgres::fresh_schema())), ..Self::sqlite() }
    }

    /// An environment whose fleet is in another one, behind a server.
    pub fn served(world: Sealed) -> Self {
        Self { server: Some(Box::new(Server::of(world))), ..Self::sqlite() }
    }

    /// Restarts the server, if there is one, so that the fleet is opened again.
    pub fn reopen(&self) {
        if let Some(Server { world, running }) = self.server.as_deref() {
            *running.lock().expect("not poisoned") = Serving::start(world, &[]);
        }
    }

    /// The address of the server, if there is one.
    pub fn server(&self) -> Option<String> {
        let server = self.server.as_ref()?;
        Some(server.running.lock().expect("not poisoned").url.clone())
    }

    /// The same fleet in another directory, by another address.
    pub fn over(&self, url: &str) -> Self {
        Self { db: Some(url.into()), ..Self::sqlite() }
    }

    /// Is the fleet in the work tree of the git repository?
    pub fn is_in_its_work_tree(&self) -> bool {
        self.db.is_none() && self.server.is_none()
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where the fleet is, for opening it from the test itself.
    pub fn url(&self) -> String {
        if let Some(server) = &self.server {
            return server.world.url();
        }
        self.db.clone().unwrap_or_else(|| self.path().join(".fence/fence.db").display().to_string())
    }

    /// A program without the test's own environment.
    pub fn command(&self, program: &str) -> Command {
        let bin = Path::new(env!("CARGO_BIN_EXE_fence")).parent().expect("its directory");
        let path = format!("{}:/usr/bin:/bin", bin.display());
        // Found here, because std would copy this whole process for a program to find in a changed PATH.
        let found = path.split(':').map(|dir| Path::new(dir).join(program)).find(|file| file.exists());
        let mut command = Command::new(found.unwrap_or_else(|| program.into()));
        command
            .current_dir(self.path())
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.path())
            .env("TZ", "UTC")
            // A slow machine is no outage.
            .env("FENCE_HOOK_TIMEOUT", "10m")
            .env("XDG_RUNTIME_DIR", self.path());
        if let Some(db) = &self.db {
            command.env(if db.starts_with("http") { "FENCE_URL" } else { "FENCE_DB" }, db);
        }
        if let Some(server) = &self.server {
            command.env("FENCE_URL", &server.running.lock().expect("not poisoned").url);
        }
        command
    }

    /// Waits until the whole log can be read: on PostgreSQL it is readable up to the oldest transaction of all tests.
    pub fn readable(&self) {
        let url = self.url();
        if !url.starts_with("postgres") {
            return;
        }
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let fleet = runtime.block_on(fencepost::Fleet::open(&url)).expect("the fleet");
        eventually("the log can be read", || {
            let hidden = fleet.transaction(|tx| {
                let sql = "select 1 as hidden from event
                           where ord >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint limit 1";
                Box::pin(async move { tx.query(sql, fencepost::params![]).await })
            });
            runtime.block_on(hidden).expect("an answer").is_empty().then_some(())
        });
    }

    /// Changes the database directly.
    pub fn sql(&self, sql: &'static str) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let fleet = runtime.block_on(fencepost::Fleet::open(&self.url())).expect("the fleet");
        let change = fleet.transaction(move |tx| Box::pin(tx.execute(sql, fencepost::params![])));
        runtime.block_on(change).expect("changed");
    }

    /// A script in a file, for a shell that is not `bash -c`.
    pub fn script(&self, name: &str, text: &str) {
        // Another process writes it: children of other tests inherit the files that this process has open, and a file that is
        // open for writing cannot be executed.
        let mut write = self.command("sh");
        write.args(["-c", r#"cat > "$0" && chmod 755 "$0""#, name]).stdin(Stdio::piped());
        let mut write = write.spawn().expect("sh");
        write!(write.stdin.take().expect("its input"), "#!/bin/bash\n{text}\n").expect("it reads");
        let written = write.wait().expect("its end");
        assert!(written.success(), "{name}: {written}");
    }

    /// Gives the git repository a user, and its branch main a commit.
    pub fn first_commit(&self) {
        let said = self.sh(
            "git symbolic-ref HEAD refs/heads/main && git config user.name Kim && git config user.email kim@example.com && \
             git commit -q --allow-empty -m 'begin'",
        );
        assert_eq!(said.code, 0, "{said:?}");
    }

    pub fn sh(&self, script: &str) -> Finished {
        finished(self.command("bash").args(["-c", script]).output().expect("bash"))
    }

    /// Runs `fence` with these words, for the run `me` if they name no other.
    pub fn fence(&self, words: &[&str]) -> Finished {
        if self.server.is_some() && words == ["init"] {
            // The server has created it.
            return Finished { code: 0, out: String::new(), err: String::new() };
        }
        finished(self.command("fence").env("FENCE_RUN", "me").args(words).output().expect("fence"))
    }

    /// Starts `fence` with these words, for the run `me`.
    pub fn spawn(&self, words: &[&str]) -> Child {
        let mut command = self.command("fence");
        command.env("FENCE_RUN", "me").args(words).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fence")
    }

    /// Runs `fence`, which must succeed, and returns its output.
    #[track_caller]
    pub fn ok(&self, words: &[&str]) -> String {
        let said = self.fence(words);
        assert_eq!(said.code, 0, "fence {words:?}: {said:?}");
        said.out
    }

    /// The command, its output and its exit code, with all times replaced.
    pub fn show(&self, words: &[&str]) -> String {
        let said = self.fence(words);
        let mut shown = format!("$ fence {}\n", words.join(" "));
        for part in [&said.out, &said.err] {
            if !part.is_empty() {
                shown.push_str(&without_times(part));
                shown.push('\n');
            }
        }
        if said.code != 0 {
            shown.push_str(&format!("(exit {})\n", said.code));
        }
        shown
    }

    /// Runs several commands, one per line; `'…'` keeps words together.
    pub fn transcript(&self, commands: &str) -> String {
        let lines = commands.lines().map(str::trim).filter(|line| !line.is_empty());
        let shown = lines.map(|line| {
            let words: Vec<String> = words(line);
            self.show(&words.iter().map(String::as_str).collect::<Vec<_>>())
        });
        shown.collect::<Vec<_>>().join("\n")
    }
}

fn words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(at, part)| match at % 2 {
        1 => vec![part.to_owned()],
        _ => part.split_whitespace().map(str::to_owned).collect(),
    });
    words.collect()
}

/// Replaces every time by TIME, and drops the heading of a day that begins between two commands.
pub fn without_times(text: &str) -> String {
    let mut out = String::new();
    let is_day = |line: &str| line.split_once("day 20").is_some_and(|(_, date)| date.trim_end().len() == 8);
    let text: String = text.split_inclusive('\n').filter(|line| !is_day(line)).collect();
    for word in text.split_inclusive([' ', '\n', '"', ']', '(', ')']) {
        let core = word.trim_end_matches([' ', '\n', '"', ']', '(', ')']);
        let is_moment = core.len() == 24 && core.ends_with('Z') && core.as_bytes()[10] == b'T';
        let is_time =
            core.len() == 8 && core.bytes().all(|c| c.is_ascii_digit() || c == b':') && core.contains(':');
        if is_moment || is_time {
            out.push_str("TIME");
            out.push_str(&word[core.len()..]);
        } else {
            out.push_str(word);
        }
    }
    // A column of times is as wide as a time.
    out.replace("TIME                    ", "TIME")
}

/// Waits for something that another process does; if it does not, the test fails.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "a real process is awaited")]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    // Five minutes: longer than every timeout of ours (a client tries to reach its server for 15 s), also on a busy machine.
    let began = std::time::Instant::now();
    while began.elapsed().as_secs() < 300 {
        if let Some(found) = look() {
            return found;
        }
        // Later looks are rarer: many of them start a process or read all of `/proc`, and other tests need the machine.
        let pause = began.elapsed() / 20;
        std::thread::sleep(pause.clamp(Duration::from_millis(5), Duration::from_millis(100)));
    }
    panic!("within five minutes it did not come true that {what}");
}

pub fn finished(output: Output) -> Finished {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    Finished {
        code: output.status.code().unwrap_or(-1),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

/// Runs a test at the same time in two worlds: both databases, one of them behind a server.
pub fn at_once(test: fn(Sealed)) {
    type Start = fn() -> Sealed;
    let worlds: [(&str, Start); 2] =
        [("sqlite", Sealed::sqlite), ("postgres_served", || Sealed::served(Sealed::postgres()))];
    let tests = worlds.map(|(name, world)| {
        let test = std::thread::Builder::new().name(name.into()).spawn(move || test(world()));
        (name, test.expect("a thread"))
    });
    let failed: Vec<_> =
        tests.into_iter().filter_map(|(name, test)| test.join().is_err().then_some(name)).collect();
    assert!(failed.is_empty(), "it failed in {failed:?}");
}

/// Runs a test on both databases, and on SQLite once more over HTTP. There the database makes no difference to a command, and tests of
/// the client and the server use both. Attributes such as `#[ignore]` go to each of the three.
///
/// - Tests after `without a server:` do not run over HTTP: they are dear, and HTTP makes no difference to them.
/// - Tests after `at once:` mostly wait: one test runs in two worlds at the same time, SQLite without a server and PostgreSQL with one.
#[macro_export]
macro_rules! on_both {
    (
        $($(#[$of:meta])* fn $name:ident($sealed:ident: Sealed) $body:block)*
        $(without a server: $($(#[$of_own:meta])* fn $own:ident($own_sealed:ident: Sealed) $own_body:block)*)?
        $(at once: $($(#[$of_waiting:meta])* fn $waiting:ident($waiting_sealed:ident: Sealed) $waiting_body:block)*)?
    ) => {
        $(fn $name($sealed: $crate::sealed::Sealed) $body)*
        $($(fn $own($own_sealed: $crate::sealed::Sealed) $own_body)*)?
        $($(fn $waiting($waiting_sealed: $crate::sealed::Sealed) $waiting_body)*)?
        $crate::in_world!(sqlite, $crate::sealed::Sealed::sqlite(), $($(#[$of])* $name)* $($($(#[$of_own])* $own)*)?);
        $crate::in_world!(postgres, $crate::sealed::Sealed::postgres(), $($(#[$of])* $name)* $($($(#[$of_own])* $own)*)?);
        $crate::in_world!(sqlite_served, $crate::sealed::Sealed::served($crate::sealed::Sealed::sqlite()), $($(#[$of])* $name)*);
        $(mod at_once {
            $($(#[$of_waiting])* #[test] fn $waiting() { $crate::sealed::at_once(super::$waiting); })*
        })?
    };
}

#[macro_export]
macro_rules! in_world {
    ($world:ident, $sealed:expr, $($(#[$of:meta])* $name:ident)*) => {
        mod $world {
            $($(#[$of])* #[test] fn $name() { super::$name($sealed); })*
        }
    };
}
