//! The command of a child: its line, its prompt, its environment, and the session that it resumes.

use super::{
    child::Child,
    profile::{PromptBy, Words},
    prompt::Facts,
};
use crate::{
    context::KEY,
    identity,
    run_files::{GIVEN, PROMPT, RunFiles, State, TRIGGER},
    supervise,
    worktree::Tree,
};
use fencepost::Result;
use std::{ffi::OsString, process::Command};

impl Child<'_> {
    /// The command of the child, and its standard input.
    pub fn command(&self, tree: Option<&Tree>) -> Result<(Command, Vec<u8>)> {
        let crew = self.worker.crew;
        let path = tree.map(|tree| tree.path.display().to_string());
        let facts = Facts {
            agent: &self.worker.agent,
            run: &self.trigger.run,
            tree: path.as_deref(),
            branch: tree.and_then(|tree| tree.branch.as_deref()),
        };
        let prompt = crew.prompts.of(self.trigger, &facts)?;
        self.files.write(PROMPT, &prompt)?;
        let directory = tree.map_or_else(std::env::current_dir, |tree| Ok(tree.path.clone()));
        self.state.borrow_mut().client =
            directory.ok().map(|directory| (self.worker.crew.profile_name.clone(), directory));
        let mut line = self.words()?;
        let input = match crew.profile.prompt {
            PromptBy::Stdin => prompt.into_bytes(),
            PromptBy::Argument => {
                line.push(prompt.into());
                Vec::new()
            }
        };
        let mut command = supervise::command(&line, self.renewer.first(), self.worker.service.context)?;
        if let Some(tree) = tree {
            tree.enter(&mut command);
        }
        self.withhold_key(&mut command);
        command.envs(&crew.profile.env);
        self.set_environment(&mut command);
        Ok((command, input))
    }

    /// The command line, without a prompt.
    fn words(&self) -> Result<Vec<OsString>> {
        let crew = self.worker.crew;
        if !crew.args.command.is_empty() {
            return Ok(crew.args.command.clone());
        }
        let session = self.session();
        let words = Words::new(vec![
            ("agent", self.worker.agent.clone()),
            ("run", self.trigger.run.clone()),
            ("session", session.clone().unwrap_or_default()),
            ("fleet_directories", self.fleet_directories()),
            ("fleet_is_remote", self.fleet_directories().eq("[]").to_string()),
            ("given_directory", self.files.path(GIVEN).display().to_string()),
        ]);
        let resume = session.map_or(&[][..], |_| &crew.profile.resume);
        let line = [&crew.profile.command[..], resume, &crew.profile.last].concat();
        Ok(words.fill(&line)?.into_iter().map(OsString::from).collect())
    }

    /// The client's session to resume, if there is one on this machine.
    fn session(&self) -> Option<String> {
        if self.worker.crew.profile.resume.is_empty() {
            return None;
        }
        let states = RunFiles::all().into_iter().filter_map(|files| files.state());
        resumed(&self.state.borrow(), states)
    }

    /// Leaves the key out of the command's environment, if the user wants that. The profile may give another key.
    pub fn withhold_key(&self, command: &mut Command) {
        if self.worker.crew.args.no_key {
            command.env_remove(KEY);
        }
    }

    pub fn set_environment(&self, command: &mut Command) {
        let single = match self.trigger.claims.as_slice() {
            [only] => Some(&only.token),
            _ => None,
        };
        match single {
            Some(token) => command.env("FENCE_CLAIM", token),
            // Our own environment may have another claim.
            None => command.env_remove("FENCE_CLAIM"),
        };
        match &self.trigger.wakeup {
            Some(wakeup) => command.env("FENCE_CHANNEL", &wakeup.channel),
            None => command.env_remove("FENCE_CHANNEL"),
        };
        command
            .env(identity::RUN, &self.trigger.run)
            .env("FENCE_AGENT", &self.worker.agent)
            .env("FENCE_TRIGGER", self.trigger.kind.as_str())
            .env("FENCE_TRIGGER_FILE", self.files.path(TRIGGER));
    }

    /// The directory of an embedded fleet's database, as a list in TOML; empty if the fleet is elsewhere.
    fn fleet_directories(&self) -> String {
        let file = self.worker.crew.database_file.as_ref();
        let directory = file.and_then(|file| file.path().parent()).map(|path| path.display().to_string());
        serde_json::json!(Vec::from_iter(directory)).to_string()
    }
}

/// The rule: the session of the last run with the same subject, if it can be resumed. A client finds its sessions only in the directory
/// where they began. An agent goes on with its own conversation in a channel, and with anybody's attempt at a task.
fn resumed(ours: &State, states: impl Iterator<Item = State>) -> Option<String> {
    ours.subject.as_ref()?;
    let is_earlier = |state: &State| {
        (&state.subject, &state.fleet, &state.client) == (&ours.subject, &ours.fleet, &ours.client)
            && (ours.task().is_some() || state.agent == ours.agent)
            && state.run != ours.run
    };
    states.filter(is_earlier).max_by_key(|state| state.began)?.session
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::Time;

    #[test]
    fn the_session_that_is_resumed() {
        let state = |run: &str, began, subject: &str, session: &str| {
            let mut state = State::new(run, "bob", "here").unwrap();
            (state.began, state.subject) = (Time(began), Some(subject.into()));
            state.session = Some(session.to_owned()).filter(|session| !session.is_empty());
            state.client = Some(("claude".into(), "/srv".into()));
            state
        };
        let by = |agent: &str, state: State| State { agent: agent.into(), ..state };
        let of = |subject: &str, states: Vec<State>| {
            resumed(&state("ours", 9, subject, "ours"), states.into_iter()).unwrap_or_default()
        };
        let earlier = vec![
            state("r1", 1, "channel/general", "s1"),
            state("r2", 2, "channel/general", "s2"),
            state("r3", 3, "channel/other", "s3"),
            by("ann", state("r4", 4, "channel/general", "s4")),
            by("ann", state("r5", 5, "b-1", "s5")),
            State { client: None, ..state("r6", 6, "channel/general", "") },
        ];
        assert_eq!(of("channel/general", earlier.clone()), "s2", "the agent's last one in this channel");
        assert_eq!(of("b-1", earlier.clone()), "s5", "another agent's attempt at the task");
        assert_eq!(of("b-2", earlier.clone()), "");
        let failed = state("r7", 7, "channel/general", "");
        assert_eq!(of("channel/general", [earlier, vec![failed]].concat()), "", "after a failure a new one");
    }
}
