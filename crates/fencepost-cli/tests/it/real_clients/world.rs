//! A person's machine in a directory: a home with `fence` and settings of clients, a git repository with a remote, and a fleet.

use super::model::{Model, Script};
use crate::{
    running::Running,
    sealed::{Finished, eventually, finished},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    Claude,
    Codex,
}

pub use Client::{Claude, Codex};

impl Client {
    pub fn name(self) -> &'static str {
        match self {
            Claude => "claude",
            Codex => "codex",
        }
    }

    /// The client's program, if `scripts/agents` could install it. If not, the test says so.
    pub fn program(self, test: &str) -> Option<PathBuf> {
        let variable = format!("FENCE_TEST_{}", self.name().to_uppercase());
        let program = std::env::var_os(&variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        if program.is_none() {
            // Not by `eprintln!`, which the test harness swallows.
            let _ =
                writeln!(std::io::stderr(), "NOT RUN: {test}: {variable} is not set; make agents sets it");
        }
        program
    }

    /// The words of `fence setup`, as the README has them.
    pub fn setup(self) -> &'static [&'static str] {
        match self {
            Claude => &["setup", "claude", "--mcp"],
            Codex => &["setup", "codex", "--user"],
        }
    }
}

pub struct World {
    pub client: Client,
    pub model: Model,
    program: PathBuf,
    dir: tempfile::TempDir,
    /// The server of the fleet and a key for it, for commands and clients.
    server: Option<(String, String)>,
}

impl World {
    /// A repository with one commit that is pushed, and an empty fleet. The client is not yet set up.
    pub fn new(client: Client, program: PathBuf, scripts: Vec<Script>) -> Self {
        let world = Self::without_fleet(client, program, scripts);
        world.ok(&["init"]);
        world
    }

    /// The same, with the fleet behind a server, in a directory that only the server knows.
    pub fn served(client: Client, program: PathBuf, scripts: Vec<Script>) -> (Self, Running) {
        let mut world = Self::without_fleet(client, program, scripts);
        let on_server = |words: &[&str]| {
            let mut command = world.command("fence");
            command.current_dir(world.path("server")).env("FENCE_DB", world.path("server/fence.db"));
            Running::start(&mut command, words)
        };
        assert_eq!(on_server(&["init"]).end().code, 0);
        let key = on_server(&["key", "add", "kim", "--role", "admin"]).end().out;
        let key = key.lines().next().expect("a key").to_owned();
        let server = on_server(&["serve", "--listen", "127.0.0.1:0"]);
        let url = eventually("the server listens", || {
            let address = server.out().lines().next()?.rsplit(' ').next()?.to_owned();
            address.starts_with("http://").then_some(address)
        });
        world.server = Some((url, key));
        (world, server)
    }

    fn without_fleet(client: Client, program: PathBuf, scripts: Vec<Script>) -> Self {
        let ours = fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(ours).tempdir().expect("a directory");
        let world = Self { client, model: Model::start(scripts), program, dir, server: None };
        for name in ["home/bin", "home/.codex", "repo", "runtime", "server"] {
            fs::create_dir_all(world.path(name)).expect("made");
        }
        let built = Path::new(env!("CARGO_BIN_EXE_fence"));
        let installed = world.path("home/bin/fence");
        fs::hard_link(built, &installed)
            .or_else(|_| fs::copy(built, &installed).map(drop))
            .expect("installed");
        // Codex runs commands in a login shell, which sets PATH anew.
        fs::write(world.path("home/.profile"), "PATH=$HOME/bin:$PATH\n").expect("written");
        let config = format!(
            "model = \"gpt-5.1-codex\"\nmodel_provider = \"script\"\n\n[model_providers.script]\nname = \"script\"\n\
             base_url = \"{}/v1\"\nwire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n",
            world.model.url()
        );
        fs::write(world.path("home/.codex/config.toml"), config).expect("written");
        world.ok_sh(
            "git config --global user.name Kim && git config --global user.email kim@example.com && \
             git config --global init.defaultBranch main && git init -q && git init -q --bare ../remote.git && \
             git commit -q --allow-empty -m begin && git remote add origin ../remote.git && git push -q -u origin main",
        );
        // `fence work` finds the client by its name.
        std::os::unix::fs::symlink(&world.program, world.path("home/bin").join(client.name()))
            .expect("linked");
        world
    }

    /// The same, with the client set up as a person does it.
    pub fn set_up(client: Client, program: PathBuf, scripts: Vec<Script>) -> Self {
        let world = Self::new(client, program, scripts);
        world.ok(client.setup());
        world.trust();
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program of the person, in the repository.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        let node = std::env::var("FENCE_TEST_NODE").unwrap_or_default();
        let path = format!("{}:{node}:/usr/bin:/bin", self.path("home/bin").display());
        let found = path.split(':').map(|dir| Path::new(dir).join(program)).find(|file| file.is_file());
        let mut command = Command::new(found.unwrap_or_else(|| program.into()));
        command
            .current_dir(self.path("repo"))
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .env("TMPDIR", self.path("runtime"))
            .env("SHELL", "/bin/bash")
            .env("USER", "kim")
            .env("LANG", "C.UTF-8")
            .env("TERM", "xterm-256color");
        if let Some((url, key)) = &self.server {
            command.env("FENCE_URL", url).env("FENCE_KEY", key);
        }
        command
    }

    /// Runs `fence` as the person, for a run of theirs.
    pub fn fence(&self, words: &[&str]) -> Finished {
        finished(self.command("fence").env("FENCE_RUN", "person").args(words).output().expect("fence"))
    }

    #[track_caller]
    pub fn ok(&self, words: &[&str]) -> String {
        let said = self.fence(words);
        assert_eq!(said.code, 0, "fence {words:?}: {said:?}");
        said.out
    }

    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[&["--json"], words].concat())).expect("JSON")
    }

    #[track_caller]
    pub fn ok_sh(&self, script: &str) -> String {
        let said = finished(self.command("bash").args(["-c", script]).output().expect("bash"));
        assert_eq!(said.code, 0, "{script}: {said:?}");
        said.out
    }

    pub fn add(&self, tasks: usize) {
        for n in 1..=tasks {
            self.ok(&["add", &format!("task {n}"), "--board", "auth"]);
        }
    }

    /// The state of a task.
    pub fn status(&self, task: &str) -> String {
        self.json(&["show", task])["task"]["status"].as_str().expect("a status").to_owned()
    }

    /// The claims, as run and resource.
    pub fn claims(&self) -> Vec<(String, String)> {
        let claims = self.json(&["claims"]);
        let claims = claims["claims"].as_array().expect("a list").clone();
        let text = |claim: &Value, field: &str| claim[field].as_str().expect("a text").to_owned();
        claims.iter().map(|claim| (text(claim, "run"), text(claim, "resource"))).collect()
    }

    /// The subjects of the commits that the remote repository has, the newest first.
    pub fn pushed(&self) -> Vec<String> {
        let log = self.ok_sh("git -C ../remote.git log --format=%s main");
        log.lines().map(str::to_owned).collect()
    }

    /// The processes of this world, known by its home, with all their variables. A process that has ended has none.
    pub fn processes(&self) -> Vec<(Pid, Vec<String>)> {
        let home = format!("HOME={}", self.path("home").display());
        let process = |entry: fs::DirEntry| {
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let variables =
                environment.split(|&b| b == 0).map(|variable| String::from_utf8_lossy(variable).into_owned());
            let variables: Vec<String> = variables.collect();
            let id = entry.file_name().to_str()?.parse().ok()?;
            variables.contains(&home).then_some((Pid::from_raw(id)?, variables))
        };
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(process).collect()
    }

    /// The client, or a program that starts it. The variables lead Claude Code to the model, and keep it from all else outside.
    pub fn with_model(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.command(program);
        command
            .env("ANTHROPIC_BASE_URL", self.model.url())
            .env("ANTHROPIC_API_KEY", "no-key")
            .env("DISABLE_TELEMETRY", "1")
            .env("DISABLE_AUTOUPDATER", "1")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        command
    }

    pub fn client_command(&self) -> Command {
        self.with_model(&self.program)
    }

    /// Can Codex's sandbox run on this machine? If not, the test says so.
    pub fn has_sandbox(&self, test: &str) -> bool {
        let tried = finished(self.client_command().args(["sandbox", "true"]).output().expect("codex"));
        if tried.code != 0 {
            let why = tried.err.lines().last().unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "NOT RUN: {test}: Codex's sandbox does not run here: {why}");
        }
        tried.code == 0
    }

    /// Starts a headless session with this prompt.
    pub fn session(&self, prompt: &str) -> Session {
        self.session_in(&self.path("repo"), prompt, &["--sandbox", "danger-full-access"])
    }

    /// Starts a session in this directory. The words are for Codex.
    pub fn session_in(&self, directory: &Path, prompt: &str, codex: &[&str]) -> Session {
        let mut command = self.client_command();
        command.current_dir(directory);
        match self.client {
            Claude => {
                command.args(["-p", prompt, "--output-format", "json", "--allowedTools", "Bash,Agent,Write"]);
            }
            Codex => {
                command.args(["exec", "--json"]).args(codex).arg(prompt);
            }
        }
        Session::start(command)
    }

    /// Goes on with the last session.
    pub fn resumed(&self, prompt: &str) -> Session {
        let mut command = self.client_command();
        command.args(match self.client {
            Claude => ["-p", prompt, "--continue", "--allowedTools", "Bash"].to_vec(),
            Codex => ["exec", "--sandbox", "danger-full-access", "resume", "--last", prompt].to_vec(),
        });
        Session::start(command)
    }

    /// Trusts the hooks of Codex, as its user does by "Trust all": Codex names the digests.
    pub fn trust(&self) {
        if self.client != Codex {
            return;
        }
        let file = self.path("home/.codex/config.toml");
        let config = fs::read_to_string(&file).expect("its settings");
        // An earlier trust, of hooks that changed since.
        let mut config = config.split("\n# trusted\n").next().expect("the first part").to_owned();
        config.push_str("\n# trusted\n");
        for (key, digest) in self.hooks() {
            config.push_str(&format!("\n[hooks.state.{}]\ntrusted_hash = {}\n", json!(key), json!(digest)));
        }
        fs::write(&file, config).expect("written");
    }

    /// The hooks that Codex finds, with their digests.
    fn hooks(&self) -> Vec<(String, String)> {
        let mut command = self.client_command();
        command.arg("app-server").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Killed(command.process_group(0).spawn().expect("codex"));
        let mut input = server.0.stdin.take().expect("its input");
        for message in [
            json!({"id": 1, "method": "initialize", "params": {
                "clientInfo": {"name": "test", "version": "1"}, "capabilities": {"experimentalApi": true}}}),
            json!({"method": "initialized"}),
            json!({"id": 2, "method": "hooks/list", "params": {"cwds": [self.path("repo")]}}),
        ] {
            writeln!(input, "{message}").expect("it reads");
        }
        let lines = BufReader::new(server.0.stdout.take().expect("its output")).lines();
        let mut messages =
            lines.map_while(Result::ok).filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        let reply = messages.find(|message| message["id"] == 2).expect("a list");
        let mut found = Vec::new();
        for directory in reply["result"]["data"].as_array().unwrap_or_else(|| panic!("{reply}")) {
            for hook in directory["hooks"].as_array().unwrap_or_else(|| panic!("{reply}")) {
                let text = |field: &str| hook[field].as_str().unwrap_or_else(|| panic!("{hook}")).to_owned();
                found.push((text("key"), text("currentHash")));
            }
        }
        assert!(!found.is_empty(), "{reply}");
        found
    }
}

/// No process of the world outlives it. Clients start shells, servers and keepers in sessions of their own.
impl Drop for World {
    fn drop(&mut self) {
        // A process may start another one while the list is read.
        for _ in 0..50 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for (process, _) in left {
                let _ = kill_process(process, Signal::KILL);
            }
        }
    }
}

/// A process that is killed at the end of a scope.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running client.
pub struct Session {
    running: Running,
}

impl Session {
    pub fn start(mut command: Command) -> Self {
        command.process_group(0);
        Self { running: Running::start(&mut command, &[]) }
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(self) -> Finished {
        self.running.end()
    }

    #[track_caller]
    pub fn succeeds(self) {
        let ended = self.end();
        assert_eq!(ended.code, 0, "{ended:?}");
    }

    /// Kills the client as `kill -9` does, and nothing that it started.
    pub fn kill(&self) {
        let id = i32::try_from(self.running.id()).expect("a process id");
        for id in [client_below(id), id] {
            let _ = kill_process(Pid::from_raw(id).expect("a process id"), Signal::KILL);
        }
    }
}

/// The npm package of Codex starts its program as a child.
fn client_below(id: i32) -> i32 {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let is_codex = |child: &i32| {
        let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        name.trim_end() == "codex"
    };
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(is_codex).unwrap_or(id)
}

/// Waits for this status of a task.
#[track_caller]
pub fn becomes(world: &World, task: &str, status: &str) {
    eventually(&format!("{task} is {status}"), || (world.status(task) == status).then_some(()));
}

/// Facts that a person wants to see, such as durations. No test depends on them.
pub mod seen {
    use std::{io::Write, time::Instant};

    #[expect(clippy::disallowed_methods, reason = "the duration is only shown")]
    pub fn now() -> Instant {
        Instant::now()
    }

    pub fn say(text: &str) {
        let _ = writeln!(std::io::stderr(), "SEEN: {text}");
    }
}
