//! Reports events to the user: a line per event, JSON, or the model of the live view.

use super::{capture::Activity, worker::what};
use crate::{
    context::Context,
    output::{
        streams,
        terminal::rough,
        text::{self, line},
    },
    view::{
        dollars,
        work::{Counters, Phase, Slot, State, WorkView},
    },
};
use fencepost::{
    Error, Millis,
    agent::{PauseState, Trigger, list::Agent},
    run,
    run::settle::Outcome,
};
use fencepost_client::renewal::{self, Ticks};
use serde_json::{Value, json};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Arc,
};

/// How many notices the view keeps.
const NOTICES: usize = 200;

#[derive(Default)]
pub struct Report {
    json: bool,
    /// Is there a live view? Then nothing is printed.
    is_live: Cell<bool>,
    model: RefCell<Model>,
}

/// The content of the live view.
#[derive(Default)]
struct Model {
    children: BTreeMap<String, Child>,
    counters: Counters,
    usd: Option<f64>,
    tokens: f64,
    notices: Vec<String>,
    /// The agents of this process, with their pauses.
    agents: BTreeMap<String, Option<PauseState>>,
    /// The agents at a spend limit, each with the limit: its scope and kind.
    at_limit: BTreeMap<String, (Option<Value>, Option<Value>)>,
}

struct Child {
    agent: String,
    trigger: String,
    what: String,
    began: Ticks,
    leased_until: Ticks,
    phase: Phase,
    activity: Arc<Activity>,
}

impl Report {
    pub fn new(context: &Context, is_live: bool) -> Self {
        Self { json: context.json(), is_live: Cell::new(is_live), model: RefCell::default() }
    }

    pub fn is_live(&self) -> bool {
        self.is_live.get()
    }

    fn say(&self, text: &str, json: Value) {
        // Nobody may read it any more, and the work goes on.
        let _ = match (self.is_live.get(), self.json) {
            (true, _) => {
                self.notice(text);
                Ok(())
            }
            (false, true) => streams::print_json(&json.to_string()),
            (false, false) => streams::print(text),
        };
    }

    /// A line about something that no other event tells.
    pub fn notice_line(&self, text: &str) {
        self.say(&line(text), json!({ "event": "notice", "message": text }));
    }

    /// A child that was not started.
    pub fn forget(&self, run: &str) {
        self.model.borrow_mut().children.remove(run);
    }

    /// There is no view any more.
    pub fn print_lines(&self) {
        self.is_live.set(false);
    }

    /// A line for the user: in the view, if there is one, else on standard error.
    pub fn note(&self, text: &str) {
        match self.is_live.get() {
            true => self.notice(text),
            false => streams::print_error(text),
        }
    }

    /// A line for the view.
    fn notice(&self, text: &str) {
        let mut model = self.model.borrow_mut();
        model.notices.push(text.to_owned());
        let old = model.notices.len().saturating_sub(NOTICES);
        model.notices.drain(..old);
    }

    pub fn joined(&self, agent: &Agent) {
        self.model.borrow_mut().agents.insert(agent.name.clone(), agent.paused.clone());
        let paused = agent.paused.as_ref().map_or(String::new(), |pause| {
            format!("; it is {} (fence agent resume {} lifts that)", line(&text::paused(pause)), agent.name)
        });
        self.say(
            &format!("{}: joined as {}{paused}", agent.name, agent.role.as_str()),
            json!({ "event": "joined", "agent": agent.name, "role": agent.role, "paused": agent.paused }),
        );
    }

    pub fn left_behind(&self, agent: &str, run: &run::Run) {
        self.say(
            &format!(
                "{agent}: an earlier worker died; run {} is ended, and its work is given back",
                run.name
            ),
            json!({ "event": "cleaned_up", "agent": agent, "run": run.name }),
        );
    }

    /// The agent's present pause, if it is paused. Only a change is told.
    pub fn paused(&self, agent: &str, pause: Option<PauseState>) {
        let had = self.model.borrow_mut().agents.insert(agent.into(), pause.clone());
        if had.as_ref() == Some(&pause) {
            return;
        }
        match pause {
            Some(pause) => self.say(
                &format!("{agent}: {}", line(&text::paused(&pause))),
                json!({ "event": "paused", "agent": agent, "until": pause.until, "reason": pause.reason }),
            ),
            None => self.say(&format!("{agent}: resumed"), json!({ "event": "resumed", "agent": agent })),
        }
    }

    /// The agent's poll was refused at a spend limit. Each limit is told once, until the agent gets work again.
    pub fn at_limit(&self, agent: &str, refused: &Error) {
        let limit = (refused.field("scope").cloned(), refused.field("what").cloned());
        let had = self.model.borrow_mut().at_limit.insert(agent.into(), limit.clone());
        if had.as_ref() == Some(&limit) {
            return;
        }
        self.say(
            &format!("{agent}: waits, because {}", line(refused.message())),
            json!({
                "event": "at_limit", "agent": agent, "scope": limit.0, "what": limit.1, "limit": refused.field("limit"),
                "used": refused.field("used"), "until": refused.field("until"), "message": refused.message(),
            }),
        );
    }

    /// The agent got work.
    pub fn below_limits(&self, agent: &str) {
        self.model.borrow_mut().at_limit.remove(agent);
    }

    /// The agents of this process, with their pauses.
    pub fn agents(&self) -> Vec<(String, Option<PauseState>)> {
        self.model.borrow().agents.clone().into_iter().collect()
    }

    /// A trigger arrived: its child is being prepared.
    pub fn begun(&self, agent: &str, trigger: &Trigger, what: &str, activity: &Arc<Activity>) {
        let mut model = self.model.borrow_mut();
        model.counters.started += 1;
        let now = renewal::now();
        let child = Child {
            agent: agent.into(),
            trigger: trigger.kind.as_str().into(),
            what: what.into(),
            began: now,
            leased_until: now,
            phase: Phase::Starting,
            activity: activity.clone(),
        };
        model.children.insert(trigger.run.clone(), child);
    }

    pub fn leased_until(&self, run: &str, ends: Ticks) {
        self.model.borrow_mut().children.entry(run.into()).and_modify(|child| child.leased_until = ends);
    }

    /// Every running child was told to end.
    pub fn ending(&self, run: &str) {
        self.model.borrow_mut().children.entry(run.into()).and_modify(|child| child.phase = Phase::Ending);
    }

    pub fn started(&self, agent: &str, trigger: &Trigger, what: &str, group: i32) {
        let run = &trigger.run;
        self.model.borrow_mut().children.entry(run.clone()).and_modify(|child| child.phase = Phase::Running);
        let reclaimed = reclaimed(trigger);
        let again = reclaimed.map_or(String::new(), |reason| format!(", again: {reason}"));
        self.say(
            &format!("{agent}: {} {}  run {run}, process {group}{again}", trigger.kind.as_str(), line(what)),
            json!({
                "event": "started", "agent": agent, "run": run, "trigger": trigger.kind, "what": what,
                "process": group, "reclaimed": reclaimed,
            }),
        );
    }

    /// A wake-up goes on at its callback, without a child.
    pub fn called_back(&self, agent: &str, trigger: &Trigger) {
        let (run, what, reclaimed) = (&trigger.run, what(trigger), reclaimed(trigger));
        let reason = reclaimed.unwrap_or_default();
        self.say(
            &format!("{agent}: {} {}  run {run}, no process: {reason}", trigger.kind.as_str(), line(&what)),
            json!({
                "event": "called_back", "agent": agent, "run": run, "trigger": trigger.kind, "what": what,
                "reclaimed": reclaimed,
            }),
        );
    }

    pub fn ended(&self, agent: &str, run: &str, ended: &Ended<'_>) {
        {
            let mut model = self.model.borrow_mut();
            model.children.remove(run);
            let counters = &mut model.counters;
            *match ended.word() {
                "done" => &mut counters.done,
                "failed" => &mut counters.failed,
                "lost" => &mut counters.lost,
                _ => &mut counters.given_back,
            } += 1;
            model.tokens += ended.tokens.unwrap_or(0.0);
            model.usd = ended.usd.map(|usd| usd + model.usd.unwrap_or(0.0)).or(model.usd);
        }
        let took = rough(ended.took);
        let reason = ended.reason.map_or(String::new(), |reason| format!(": {}", line(reason)));
        let kept =
            ended.kept.as_ref().map_or(String::new(), |path| format!("; its work tree is kept: {path}"));
        let usd = ended.usd.map_or(String::new(), |usd| format!(", {}", dollars(usd)));
        self.say(
            &format!("{agent}: {} {} after {took}{usd}{reason}{kept}", line(ended.what), ended.word()),
            json!({
                "event": "ended", "agent": agent, "run": run, "what": ended.what, "outcome": ended.word(),
                "reason": ended.reason, "took_ms": ended.took, "usd": ended.usd, "kept": ended.kept,
            }),
        );
    }

    /// Fills the view.
    pub fn fill(&self, view: &mut WorkView, is_draining: bool) {
        let model = self.model.borrow();
        let now = renewal::now();
        view.slots = model
            .children
            .iter()
            .map(|(run, child)| (run, child, child.activity.told()))
            .map(|(run, child, told)| Slot {
                agent: child.agent.clone(),
                run: run.clone(),
                trigger: child.trigger.clone(),
                what: child.what.clone(),
                since_ms: Millis(now - child.began),
                lease_left_ms: Millis((child.leased_until - now).max(0)),
                last_line: told.last_line,
                usd: told.usd,
                tokens: told.tokens.unwrap_or(0.0) as u64,
                phase: child.phase,
            })
            .collect();
        let Counters { started, done, failed, given_back, lost } = model.counters;
        view.counters = Counters { started, done, failed, given_back, lost };
        (view.spent_usd, view.tokens) = (model.usd, model.tokens as u64);
        view.notices.clone_from(&model.notices);
        let paused: Vec<_> =
            model.agents.iter().filter_map(|(agent, pause)| Some((agent, pause.as_ref()?))).collect();
        view.state = match paused.as_slice() {
            _ if is_draining => State::Draining,
            [] => State::Working(String::new()),
            [(_, pause), ..] if paused.len() == model.agents.len() => State::Paused(text::paused(pause)),
            some => {
                let some = some.iter().map(|(agent, pause)| format!("{agent} is {}", text::paused(pause)));
                State::Working(some.collect::<Vec<_>>().join("; "))
            }
        };
    }
}

/// Why a wake-up is handed out again.
fn reclaimed(trigger: &Trigger) -> Option<&'static str> {
    Some(trigger.wakeup.as_ref()?.reclaimed?.as_str())
}

/// The end of a child.
pub struct Ended<'e> {
    pub what: &'e str,
    pub outcome: Outcome,
    /// Claims were lost, so the work is not accepted.
    pub lost: bool,
    pub reason: Option<&'e str>,
    pub took: Millis,
    pub usd: Option<f64>,
    pub tokens: Option<f64>,
    /// The directory of a work tree that was not removed.
    pub kept: Option<String>,
}

impl Ended<'_> {
    fn word(&self) -> &'static str {
        match self.outcome {
            _ if self.lost => "lost",
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Released => "given back",
        }
    }
}
