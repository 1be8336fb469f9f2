//! What every command has: the fleet, who is acting, and how to print.

use crate::{
    foreign, out,
    place::{self, Named, Place},
    progress::{Progress, Tidy},
    screen::Screen,
    settings::{File, Setting, Source},
    whose::{self, Identity},
};
use fencepost::{
    Clock, Code, Error, Millis, Op, Result, WAIT_MAX, claim,
    op::{self, AnyOp, AnyReply},
    run,
};
use fencepost_client::Connection;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use std::{
    borrow::Cow,
    cell::OnceCell,
    path::PathBuf,
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::OnceCell as AsyncOnceCell, time::Instant};

/// What was said on the command line or by variables, for every command alike.
#[derive(Debug, Default)]
pub struct Said {
    pub run: Option<String>,
    pub request: Option<String>,
    pub json: bool,
    /// What can also be said by variables or in `fence.toml`.
    pub settings: Vec<Setting>,
    pub file: File,
    /// The flags that the command has.
    pub flags: Vec<String>,
}

/// How often a person who watches is shown how far it is.
const WATCHED: Millis = Millis::seconds(1);
/// The same where something is to be taken. Whoever asks anew goes to the end of the line at a server, so it is seldom; what
/// is shown of a holder is no older than this.
const IN_LINE: Millis = Millis::seconds(10);
/// For giving back what was taken at the very moment in which the reader went away; else its lease ends.
const GIVE_BACK: Duration = Duration::from_secs(2);

pub struct Context {
    said: Said,
    request: String,
    who: OnceCell<Identity>,
    connection: AsyncOnceCell<Connection>,
    pub screen: Screen,
}

impl Context {
    pub fn new(said: Said) -> Self {
        Self {
            request: said.request.clone().unwrap_or_else(|| unique("")),
            said,
            who: OnceCell::new(),
            connection: AsyncOnceCell::new(),
            screen: Screen::of_stdout(Clock::System.read()),
        }
    }

    /// The id under which what this command makes or takes can be asked for again.
    pub fn request(&self) -> Option<String> {
        Some(self.request.clone())
    }

    /// The run that acts, and why it is that one.
    pub fn who(&self) -> &Identity {
        self.who.get_or_init(|| whose::identify(self.said.run.clone(), variable(whose::RUN)))
    }

    /// The run that was named on this very command line: what lives on its own is not the session's.
    pub fn named_run(&self) -> Option<String> {
        self.said.run.clone()
    }

    /// The run that claims: the one that was named, or this session's.
    pub fn run(&self) -> String {
        self.who().run.clone()
    }

    pub fn agent(&self) -> Option<String> {
        self.setting("agent")?.value.clone()
    }

    /// What a server wants to see.
    pub fn key(&self) -> Option<String> {
        self.setting("key")?.value.clone()
    }

    /// Who vouches for an https server, if not those whom the system trusts. The same from every directory.
    pub fn authority(&self) -> Option<PathBuf> {
        let file = PathBuf::from(self.setting("ca")?.value.clone()?);
        Some(std::path::absolute(&file).unwrap_or(file))
    }

    fn setting(&self, key: &str) -> Option<&Setting> {
        self.said.settings.iter().find(|setting| setting.key == key)
    }

    /// What was said on this very command line.
    pub fn flag(&self, key: &str) -> Option<String> {
        let setting = self.setting(key).filter(|setting| matches!(setting.source, Source::Flag(_)))?;
        setting.value.clone()
    }

    /// What is in force for every command, and the file that says some of it.
    pub fn settings(&self) -> (&[Setting], &File) {
        (&self.said.settings, &self.said.file)
    }

    /// The agent, for a verb that is an agent's alone.
    pub fn the_agent(&self) -> Result<String> {
        self.agent().ok_or_else(|| {
            Error::new(Code::Invalid, "this is for an agent to say, and no agent is named")
                .hint("--agent NAME or FENCE_AGENT says who you are")
        })
    }

    pub fn json(&self) -> bool {
        self.said.json
    }

    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        op::typed(self.call_any(op.erase()).await?)
    }

    pub async fn call_any(&self, op: Arc<dyn AnyOp>) -> Result<AnyReply> {
        self.connection().await?.call_any(op).await
    }

    /// Asks until the answer is no "not yet", or the time is over; for ever if there is no limit.
    pub async fn call_waiting<O: Op>(
        &self,
        limit: Option<Millis>,
        op: impl Fn(Option<Millis>) -> O,
    ) -> Result<O::Reply> {
        let mut left = limit.unwrap_or(Millis(i64::MAX));
        loop {
            let wait = left.min(WAIT_MAX);
            let answer = self.call(op(Some(wait))).await;
            left = Millis(left.0 - wait.0);
            if left.0 <= 0 || !O::not_yet(answer.as_ref()) {
                return answer;
            }
        }
    }

    /// The same, and a person at a terminal sees meanwhile what is waited for, and for how long it has been.
    pub async fn call_shown<O: Op>(
        &self,
        limit: Option<Millis>,
        op: impl Fn(Option<Millis>) -> O,
        line: impl Fn(&Result<O::Reply>) -> String,
    ) -> Result<O::Reply> {
        let mut progress = Progress::new(self.json());
        if !progress.is_seen() {
            return self.call_waiting(limit, op).await;
        }
        let mut left = limit.unwrap_or(Millis(i64::MAX));
        let mut answer = self.call(op(None)).await;
        let began = Instant::now();
        while left.0 > 0 && O::not_yet(answer.as_ref()) {
            let what = line(&answer);
            let step = left.min(if O::READS { WATCHED } else { IN_LINE });
            left = Millis(left.0 - step.0);
            let mut call = std::pin::pin!(self.call(op(Some(step))));
            let mut redraw = tokio::time::interval(Duration::from_secs(1));
            answer = loop {
                tokio::select! {
                    biased;
                    answer = &mut call => break answer,
                    _ = redraw.tick() => {
                        let waited = crate::screen::rough(began.elapsed().into());
                        progress.show(|| format!("waiting {waited}: {what}"));
                    }
                }
            };
        }
        answer
    }

    /// The same, for a command whose answer is what it prints. It ends when nobody reads that any more, and has taken
    /// nothing then.
    pub async fn call_watched<O: Op>(
        &self,
        limit: Option<Millis>,
        op: impl Fn(Option<Millis>) -> O,
        line: impl Fn(&Result<O::Reply>) -> String,
    ) -> Result<O::Reply> {
        let _tidy = Progress::new(self.json()).is_seen().then(Tidy::new);
        self.while_read(self.call_shown(limit, op, line)).await.unwrap_or_else(|| {
            Err(Error::unavailable("nobody reads standard output any more, so waiting was given up"))
        })
    }

    /// Runs this while somebody reads standard output, and drops it as soon as nobody does.
    pub async fn while_read<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = {
            let mut waiting = std::pin::pin!(waiting);
            tokio::select! {
                // Nobody would learn of an answer that comes now.
                biased;
                () = out::unread() => alive(),
                answer = &mut waiting => return Some(answer),
            }
        };
        // A look that was under way goes on in a task of its own, and gives back what it took.
        let given_back = async {
            while alive() > before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(GIVE_BACK, given_back).await;
        None
    }

    /// Where the fleet is, or would be made.
    pub fn place(&self) -> Result<Place> {
        place::find(self.named("url"), self.named("db"), &here())
    }

    /// The database, for commands that make or serve one: only a flag names a server to them.
    pub fn database(&self) -> Result<Place> {
        let flag = self.named("url").filter(|_| self.flag("url").is_some());
        place::find(flag, self.named("db"), &here())
    }

    fn named(&self, key: &str) -> Named {
        let setting = self.setting(key)?;
        Some((setting.value.clone()?, setting.source.clone()))
    }

    /// A process that we start finds the same fleet, and is let in.
    pub fn lead(&self, command: &mut Command) -> Result<()> {
        let place = self.place()?;
        let (ours, other) = place.variables();
        command.env(ours, place.absolute_url()).env_remove(other);
        if let Some(key) = self.key() {
            command.env("FENCE_KEY", key);
        }
        if let Some(authority) = self.authority() {
            command.env("FENCE_CA", authority);
        }
        Ok(())
    }

    /// The fleet that is there. Only `init` makes a new one, so that a typing error does not.
    pub async fn connection(&self) -> Result<&Connection> {
        self.connection.get_or_try_init(|| self.open(self.agent())).await
    }

    /// The same, called by this agent.
    pub async fn open(&self, agent: Option<String>) -> Result<Connection> {
        let place = self.place()?;
        let connection = Connection::open_existing(&place.url).await.map_err(|e| missing(e, &place))?;
        self.let_in(connection, agent)
    }

    /// The fleet as it is, for who only looks.
    pub async fn inspect(&self) -> Result<Connection> {
        let place = self.place()?;
        let connection = Connection::inspect(&place.url).await.map_err(|e| missing(e, &place))?;
        self.let_in(connection, self.agent())
    }

    /// The fleet, made if it is not there.
    pub async fn make(&self, place: &Place) -> Result<Connection> {
        self.let_in(Connection::open(&place.url).await?, self.agent())
    }

    fn let_in(&self, mut connection: Connection, agent: Option<String>) -> Result<Connection> {
        if let Some(key) = self.key() {
            connection = connection.with_key(&key)?;
            if let Some(server) = connection.exposes_its_key() {
                let message = format!("the key is sent to {server} without encryption: use https://");
                self.warn(&Error::new(Code::Invalid, message));
            }
        }
        if let Some(authority) = self.authority() {
            connection = connection.with_authority(&authority);
        }
        Ok(match agent {
            Some(agent) => connection.as_agent(agent),
            None => connection,
        })
    }

    /// Before the process ends: others that wait for what it did are told.
    pub async fn flush(&self) {
        if let Some(connection) = self.connection.get() {
            connection.flush().await;
        }
    }

    /// The claim to act under: the one that was named, else `FENCE_CLAIM`, else the only one that this run has.
    pub async fn token(&self, given: Option<String>) -> Result<String> {
        if let Some(given) = given {
            // A task that this run holds stands for its claim.
            let own = if given.contains('@') { None } else { self.own_token(&given).await? };
            return Ok(own.unwrap_or(given));
        }
        match variable("FENCE_CLAIM") {
            Some(token) => self.still_ours(token).await,
            None => self.only_claim().await,
        }
    }

    /// A variable stays as it is when what it names is over, and a repeated completion is answered as the first was. So
    /// if the run has gone on to something else, whoever relies on the variable is told.
    async fn still_ours(&self, token: String) -> Result<String> {
        if self.call(claim::Guard::new(&token)).await?.ok {
            return Ok(token);
        }
        let others = self.claims().await?;
        let others: Vec<_> = others.iter().map(|claim| claim.token.as_str()).collect();
        if others.is_empty() {
            return Ok(token);
        }
        Err(Error::new(Code::LeaseExpired, format!("FENCE_CLAIM is `{token}`, which is over"))
            .with("tokens", &others)
            .hint(format!("name the claim that you mean: {}", others.join(", "))))
    }

    async fn only_claim(&self) -> Result<String> {
        let run = self.run();
        let claims = self.claims().await?;
        match claims.as_slice() {
            [claim] => Ok(claim.token.clone()),
            [] => {
                let known =
                    self.call(run::List { run: Some(run.clone()), all: true, limit: Some(1) }).await?;
                // Who had something and has nothing any more must stop; who never had anything made a mistake.
                let (code, message) = match known.runs.is_empty() {
                    false => (Code::LeaseExpired, format!("run `{run}` holds nothing any more")),
                    true => (Code::NotFound, format!("run `{run}` holds nothing, and never did")),
                };
                Err(Error::new(code, message).hint(
                    "name the claim, or take something with fence claim. If fence whoami names another run \
                     each time, set FENCE_RUN",
                ))
            }
            several => {
                let tokens: Vec<_> = several.iter().map(|claim| claim.token.as_str()).collect();
                Err(Error::new(Code::Invalid, format!("run `{run}` holds {} claims", tokens.len()))
                    .with("tokens", &tokens)
                    .hint(format!("say which: {}", tokens.join(", "))))
            }
        }
    }

    /// What this run holds.
    async fn claims(&self) -> Result<Vec<claim::Claim>> {
        Ok(self.call(claim::List { run: Some(self.run()), limit: None }).await?.claims)
    }

    /// The claim on a task, if this run has it.
    pub async fn own_token(&self, task: &str) -> Result<Option<String>> {
        let resource = crate::commands::resource(task);
        Ok(self.claims().await?.into_iter().find(|claim| claim.resource == resource).map(|claim| claim.token))
    }

    /// Prints a reply: as JSON if that was asked for, else as text. The text is made of a reply in which all that others
    /// wrote was made safe to show, so that no command has to think of it.
    pub fn print<T: Serialize + DeserializeOwned>(
        &self,
        reply: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<ExitCode> {
        let json = serde_json::to_string(reply).map_err(Error::internal)?;
        let text = match foreign::shown_in_json(&json) {
            // A payload is carried as it was written, and may be written in several lines.
            _ if self.json() => return self.print_json(&json.replace('\n', " ")),
            Cow::Borrowed(_) => text(reply),
            Cow::Owned(safe) => match serde_json::from_str(&safe) {
                Ok(safe) => text(&safe),
                Err(_) => return self.print_json(&json),
            },
        };
        out::say(text.trim_end())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Prints JSON, whatever was asked for.
    pub fn print_json(&self, json: &str) -> Result<ExitCode> {
        out::say_json(json)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Something went wrong beside what was asked for, which was done.
    pub fn warn(&self, error: &Error) {
        match self.json() {
            true => out::complain_json(&serde_json::json!({ "warning": error }).to_string()),
            false => out::complain(&out::label("warning", error.message())),
        }
    }

    /// For one who is shown a token and nothing else: its lease is not the one that was asked for.
    pub fn warn_of_lease(&self, claim: &claim::Claim) {
        let kept = crate::text::lease_kept(claim, &self.screen);
        if !kept.is_empty() && !self.json() {
            self.warn(&Error::new(Code::Invalid, kept.trim_start()));
        }
    }

    /// The words with which nobody can do twice what may have been done. Over the network the error has the id, because
    /// not everything takes one.
    fn to_ask_again(&self, error: &Error) -> Option<String> {
        if error.code() != Code::OutcomeUnknown {
            return None;
        }
        let said = |field| error.field(field).and_then(|value| value.as_str());
        if let Some(run) = said("run") {
            return Some(format!("--run {run}"));
        }
        let remote = self.place().is_ok_and(|place| place.is_remote());
        let request = said("request").or((!remote).then_some(&self.request))?;
        Some(format!("--request {request}"))
    }

    /// What is wrong with a field of the request, said of the flag that it was given by.
    fn by_its_flag(&self, error: &Error) -> String {
        let message = error.message().to_owned();
        let Some(field) = error.field("field").and_then(|field| field.as_str()) else { return message };
        // What stands in a line of a file was given by no flag.
        if error.field("line").is_some() {
            return message;
        }
        let flag = field.strip_suffix("_ms").unwrap_or(field).replace('_', "-");
        match self.said.flags.contains(&flag) {
            true => message.replace(&format!("`{field}`"), &format!("`--{flag}`")),
            false => message,
        }
    }

    pub fn fail(&self, error: &Error) -> ExitCode {
        if self.json() {
            out::complain_json(&error.to_json().to_string());
        } else {
            let again = self.to_ask_again(error);
            let again = again.map(|words| format!("the same command with {words} does it at most once"));
            let hints = error.hint_text().into_iter().chain(again.as_deref());
            let lines = [out::label("error", &self.by_its_flag(error))].into_iter();
            out::complain(
                &lines.chain(hints.map(|hint| out::label("hint", hint))).collect::<Vec<_>>().join("\n"),
            );
        }
        ExitCode::from(error.code().exit_code())
    }
}

fn missing(error: Error, place: &Place) -> Error {
    match error.code() {
        Code::NotFound => Error::new(error.code(), format!("there is no fleet at {}", place.shown()))
            .hint("fence init makes it; --db or FENCE_DB names another"),
        _ => error,
    }
}

/// A directory that was removed is no hindrance where nothing is looked for in it.
fn here() -> PathBuf {
    std::env::current_dir().unwrap_or_default()
}

/// A name that nobody else has: `lock-5f…`.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}{:032x}", fastrand::u128(..))
}

/// A short name for a text, the same for the same text: `5f0c9a3e`.
pub fn digest(text: &str) -> String {
    Sha256::digest(text).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// The same, and it must be text: to pass over what cannot be read would be to act on something else.
pub fn text_variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::new(Code::Invalid, format!("{name} is not UTF-8")))
        }
        value => Ok(value.ok().filter(|value| !value.is_empty())),
    }
}

/// A variable that is set to something.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
