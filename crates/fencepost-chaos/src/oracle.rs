//! The oracle: records every acknowledgement, outside the engine, and checks the fleet against them.

use crate::{
    clients::{BOARD, BOXES, Client, text},
    follow::{self, Entry, Received, read_all},
    world::{PATIENCE, World},
};
use fencepost::sync::lock;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};

#[derive(Debug, Default)]
pub struct Oracle(Mutex<Record>);

#[derive(Debug, Default)]
struct Record {
    /// Resources that were acknowledged as added, with their title or key.
    added: HashMap<String, String>,
    claims: Vec<Claim>,
    /// The request that got each token.
    claimers: HashMap<String, String>,
    /// By resource.
    completed: HashMap<String, Completion>,
    longest_wait: Duration,
    counts: BTreeMap<&'static str, u64>,
    violations: Vec<String>,
}

#[derive(Debug, Clone)]
struct Claim {
    resource: String,
    fence: i64,
    /// When the request was first sent.
    sent: Instant,
    answered: Instant,
}

#[derive(Debug)]
struct Completion {
    token: String,
    output: String,
    sent: Instant,
}

/// No more violations than this are listed.
const SHOWN: usize = 20;

impl Oracle {
    fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.0)
    }

    pub fn violated(&self, what: String) {
        self.record().violations.push(what);
    }

    pub fn count(&self, what: &'static str) {
        *self.record().counts.entry(what).or_default() += 1;
    }

    pub fn added(&self, resource: String, name: String) {
        let mut record = self.record();
        *record.counts.entry("added").or_default() += u64::from(!record.added.contains_key(&resource));
        if let Some(other) =
            record.added.insert(resource.clone(), name.clone()).filter(|other| *other != name)
        {
            record.violations.push(format!("{resource} is the answer to `{other}` and to `{name}`"));
        }
    }

    pub fn claimed(&self, request: &str, token: &str, sent: Instant) {
        let mut record = self.record();
        *record.counts.entry("claims").or_default() += 1;
        if let Some(other) =
            record.claimers.insert(token.into(), request.into()).filter(|other| other != request)
        {
            record.violations.push(format!("{token} was given to {other} and to {request}"));
        }
        let (resource, fence) = split(token);
        record.claims.push(Claim { resource, fence, sent, answered: Instant::now() });
    }

    pub fn completed(&self, token: &str, output: &str, sent: Instant) {
        let mut record = self.record();
        *record.counts.entry("completions").or_default() += 1;
        let completion = Completion { token: token.into(), output: output.into(), sent };
        if let Some(other) = record.completed.insert(split(token).0, completion) {
            record.violations.push(format!("{} and {token} were both accepted as completed", other.token));
        }
    }

    pub fn waited(&self, span: Duration) {
        let mut record = self.record();
        record.longest_wait = record.longest_wait.max(span);
        *record.counts.entry("probes").or_default() += 1;
    }

    pub fn longest_wait(&self) -> Duration {
        self.record().longest_wait
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.record().counts.clone()
    }

    pub fn violations(&self) -> Vec<String> {
        self.record().violations.clone()
    }

    /// Compares the acknowledgements with the fleet. Call it when all faults are healed and all work is finished.
    pub async fn verify(&self, client: &mut Client, followers: &[(&str, Received)], order: bool) {
        let log = read_all(client).await;
        let items = all_items(client).await;
        let mut received = Vec::new();
        for (name, follower) in followers {
            let _ = timeout(PATIENCE, caught_up(follower, log.len())).await;
            received.push((*name, follow::events(follower)));
        }
        let mut record = self.record();
        record.counts.insert("events", log.len() as u64);
        let mut found = in_real_time(&record);
        found.extend(in_log(&record, &log));
        if order {
            found.extend(in_order(&log));
        }
        found.extend(in_tables(&record, &items));
        found.extend(received.iter().filter_map(|(name, received)| missed(name, received, &log)));
        record.violations.extend(found);
    }

    /// Runs `fence doctor` on the database itself.
    pub async fn doctor(&self, world: &World) {
        let doctor = world.fence(&["doctor", "--json"]).output().await;
        if let Some(failed) = doctor.ok().filter(|doctor| !doctor.status.success()) {
            self.violated(format!("doctor: {}{}", lossy(&failed.stdout), lossy(&failed.stderr)));
        }
    }
}

/// `task/work-3@7`
fn split(token: &str) -> (String, i64) {
    let (resource, fence) = token.rsplit_once('@').unwrap_or((token, ""));
    (resource.into(), fence.parse().unwrap_or(-1))
}

/// Checks, for each resource, that a claim sent after the answer to another has the higher fence, and that no completion
/// was accepted that was sent after the answer to the next claim.
fn in_real_time(record: &Record) -> Vec<String> {
    let mut by_resource: HashMap<&str, Vec<&Claim>> = HashMap::new();
    for claim in &record.claims {
        by_resource.entry(&claim.resource).or_default().push(claim);
    }
    let mut found = Vec::new();
    for (resource, claims) in &by_resource {
        let mut by_sent = claims.clone();
        by_sent.sort_by_key(|claim| claim.sent);
        let mut by_answered = claims.clone();
        by_answered.sort_by_key(|claim| claim.answered);
        let (mut answered, mut highest) = (by_answered.iter().peekable(), 0);
        for claim in by_sent {
            while let Some(before) = answered.next_if(|before| before.answered < claim.sent) {
                highest = highest.max(before.fence);
            }
            if claim.fence <= highest {
                found.push(format!("{resource}: fence {} was issued after {highest}", claim.fence));
            }
        }
        let Some(completion) = record.completed.get(*resource) else { continue };
        let fence = split(&completion.token).1;
        if let Some(newer) = claims.iter().find(|c| c.fence > fence && c.answered < completion.sent) {
            let newer = newer.fence;
            found.push(format!(
                "{} was accepted from a holder after fence {newer} was issued",
                completion.token
            ));
        }
    }
    found
}

/// Checks that the log has each acknowledged claim and completion once.
fn in_log(record: &Record, log: &[Entry]) -> Vec<String> {
    let (mut claimed, mut completed) = (HashSet::new(), HashMap::new());
    let mut found = Vec::new();
    for entry in log {
        let token = format!("{}@{}", entry.resource, entry.fence);
        if entry.kind.ends_with(".claimed") && !claimed.insert(token.clone()) {
            found.push(format!("{token} was claimed twice"));
        }
        if entry.kind.ends_with(".completed")
            && let Some(other) = completed.insert(entry.resource.as_str(), token.clone())
        {
            found.push(format!("{other} and {token} are both completed"));
        }
    }
    let missing = record.claimers.keys().filter(|token| !claimed.contains(*token));
    found
        .extend(missing.map(|token| format!("claim {token} was acknowledged, and the log does not have it")));
    for (resource, completion) in &record.completed {
        if completed.get(resource.as_str()) != Some(&completion.token) {
            let has = completed.get(resource.as_str());
            found
                .push(format!("{} was acknowledged as completed, and the log has {has:?}", completion.token));
        }
    }
    found
}

/// Checks that the log has the events of each resource in the order in which they happened.
pub fn in_order(log: &[Entry]) -> Vec<String> {
    #[derive(Default)]
    struct At<'e> {
        added: bool,
        fence: i64,
        completed: Option<&'e Entry>,
    }
    let mut resources: HashMap<&str, At<'_>> = HashMap::new();
    let mut found = Vec::new();
    for entry in log {
        let (noun, verb) = entry.kind.split_once('.').unwrap_or_default();
        let item = resources.entry(&entry.resource).or_default();
        let mut wrong =
            |what: &str| found.push(format!("order of {}: {} {what}", entry.resource, entry.show()));
        match verb {
            "added" | "pushed" => item.added = true,
            "claimed" | "completed" | "lapsed" | "released" | "undelivered" => {
                if noun != "lock" && noun != "mentions" && !item.added {
                    wrong("comes before it was added");
                }
                if item.completed.is_some() {
                    wrong("comes after it was completed");
                }
                match verb {
                    "claimed" if entry.fence <= item.fence => {
                        wrong(&format!("comes after fence {}", item.fence))
                    }
                    "claimed" => item.fence = entry.fence,
                    _ if entry.fence != item.fence => wrong(&format!("comes under fence {}", item.fence)),
                    _ => {}
                }
                if verb == "completed" {
                    item.completed = Some(entry);
                }
            }
            _ => {}
        }
    }
    found
}

/// Checks that every acknowledged item exists once, and is finished with its acknowledged output.
fn in_tables(record: &Record, items: &HashMap<String, Item>) -> Vec<String> {
    let mut found = Vec::new();
    for (resource, name) in &record.added {
        match items.get(resource) {
            None => found.push(format!("{resource} was acknowledged and is gone")),
            Some(item) if item.name != *name => {
                found.push(format!("{resource} is `{}`, not `{name}`", item.name))
            }
            Some(_) => {}
        }
    }
    let mut names = HashMap::new();
    for (resource, item) in items {
        // A bystander's last task may be unfinished: its lease may have expired with the last jump of the clock.
        if !item.finished && !resource.starts_with("task/probe-") {
            found.push(format!("{resource} was not finished: it is {}", item.status));
        }
        if let Some(other) = names.insert(&item.name, resource) {
            found.push(format!("{resource} and {other} are the same: `{}`", item.name));
        }
        if let (Some(output), Some(completion)) = (&item.output, record.completed.get(resource))
            && *output != completion.output
        {
            found.push(format!(
                "{resource} has the output `{output}`, and `{}` was accepted",
                completion.output
            ));
        }
    }
    found
}

async fn caught_up(follower: &Received, events: usize) {
    while follow::events(follower).len() < events {
        sleep(Duration::from_millis(100)).await;
    }
}

/// The first event that a follower missed. It may have received more than the log had when the log was read.
fn missed(name: &str, received: &[Entry], log: &[Entry]) -> Option<String> {
    let at = received.iter().zip(log).take_while(|(received, log)| received == log).count();
    let show = |log: &[Entry]| log.get(at).map(Entry::show);
    let (got, has) = (show(received), show(log));
    (at < log.len()).then(|| format!("{name} missed events: at {at} it got {got:?}, and the log has {has:?}"))
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// A task or a message at the end.
#[derive(Debug)]
struct Item {
    name: String,
    status: String,
    finished: bool,
    output: Option<String>,
}

/// The number of unfinished items, up to some hundred. One request covers all states: between two requests a lease may
/// expire, and the item would be in neither answer.
pub async fn unfinished(client: &mut Client) -> i64 {
    let mut left =
        page(client, "task/list", "tasks", json!({ "board": BOARD, "open": true })).await.len() as i64;
    for mailbox in page(client, "mail/stats", "mailboxes", json!({})).await {
        if BOXES.contains(&text(&mailbox["name"]).as_str()) {
            let open = ["ready", "waiting", "processing"].map(|state| mailbox[state].as_i64().unwrap_or(0));
            left += open.iter().sum::<i64>();
        }
    }
    left
}

async fn all_items(client: &mut Client) -> HashMap<String, Item> {
    let mut items = HashMap::new();
    let mut list = json!({ "limit": 1000 });
    loop {
        let tasks = page(client, "task/list", "tasks", list.clone()).await;
        let Some(last) = tasks.last() else { break };
        list["after"] = last["id"].clone();
        for task in &tasks {
            let shown = client.call("task/show", &json!({ "task": task["id"] })).await.unwrap_or_default();
            let output = shown["task"]["output"].as_str().map(str::to_owned);
            items.insert(format!("task/{}", text(&task["id"])), item(task, text(&task["title"]), output));
        }
    }
    for mailbox in BOXES {
        let mut list = json!({ "mailbox": mailbox, "limit": 1000 });
        loop {
            let messages = page(client, "mail/list", "messages", list.clone()).await;
            let Some(last) = messages.last() else { break };
            list["after"] = last["id"].clone();
            for message in &messages {
                let name = format!("{mailbox} {}", text(&message["idempotency_key"]));
                items.insert(format!("message/{}", message["id"]), item(message, name, None));
            }
        }
    }
    items
}

fn item(view: &Value, name: String, output: Option<String>) -> Item {
    let status = text(&view["status"]);
    Item { name, finished: status == "completed" || status == "processed", status, output }
}

async fn page(client: &mut Client, op: &str, field: &str, list: Value) -> Vec<Value> {
    match client.call(op, &list).await {
        Ok(page) => page[field].as_array().cloned().unwrap_or_default(),
        Err(refusal) => {
            client.oracle.violated(format!("{op}: {} {}", refusal.code, refusal.text));
            Vec::new()
        }
    }
}

/// The first violations: a broken promise is often broken a thousand times.
pub fn shortened(violations: Vec<String>) -> Vec<String> {
    let all = violations.len();
    let mut shown: Vec<_> = violations.into_iter().take(SHOWN).collect();
    if all > SHOWN {
        shown.push(format!("and {} more", all - SHOWN));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn double_and_late_claims_are_found() {
        let oracle = Oracle::default();
        let (early, later) = (Instant::now(), Instant::now() + Duration::from_secs(9));
        oracle.claimed("a", "task/b-1@1", early);
        oracle.claimed("a", "task/b-1@1", early);
        assert_eq!(oracle.violations(), [""; 0]);
        oracle.claimed("b", "task/b-1@1", early);
        oracle.claimed("c", "task/b-1@2", early);
        oracle.completed("task/b-1@1", "", later);
        oracle.completed("task/b-1@2", "", later);
        oracle.claimed("d", "task/b-1@2", later);
        let expected = [
            "task/b-1@1 was given to a and to b",
            "task/b-1@1 and task/b-1@2 were both accepted as completed",
            "task/b-1@2 was given to c and to d",
        ];
        assert_eq!(oracle.violations(), expected);
        let record = oracle.record();
        assert_eq!(in_real_time(&record), ["task/b-1: fence 2 was issued after 2"]);
        assert_eq!(in_log(&record, &[]).len(), 3, "two claims and a completion are not in the log");
    }

    #[test]
    fn a_log_that_is_out_of_order_is_found() {
        let log = |events: &str| {
            let entry = |event: &str| {
                let (kind, fence) = event.split_once('@').unwrap_or((event, "0"));
                Entry::new(&format!("task.{kind}"), "task/b-1", fence.parse().unwrap())
            };
            in_order(&events.split(' ').map(entry).collect::<Vec<_>>()).len()
        };
        assert_eq!(log("added claimed@1 lapsed@1 claimed@2 completed@2"), 0);
        assert_eq!(log("claimed@1 added"), 1);
        assert_eq!(log("added claimed@2 claimed@1"), 1);
        assert_eq!(log("added claimed@1 completed@1 claimed@2"), 1);
        assert_eq!(log("added claimed@1 claimed@2 released@1"), 1);
    }
}
