//! Keys: which ops each may call, and whose claims it may change.

use crate::registry::least_request;
use fencepost::{
    Access, Code, Error, Fleet, Millis, Result, admin, claim, event, inbox, key, lock, mail, op, run, task,
};
use fencepost_testing::{World, eventually, on_both};

/// The fleet as called with a new key of this role.
async fn key_of(fleet: &Fleet, name: &str, role: Access) -> key::Key {
    let secret = fleet.call(key::Add::new(name, role)).await.unwrap().secret;
    fleet.key(&secret).await.unwrap().expect("it was just added")
}

/// The fleet as called with this agent's key.
pub async fn as_agent_key(fleet: &Fleet, agent: &str) -> Fleet {
    fleet.as_key(&key_of(fleet, agent, Access::Agent).await)
}

fn refused<T: std::fmt::Debug>(code: Code, result: Result<T>) -> Error {
    let error = result.expect_err("a refusal");
    assert_eq!(error.code(), code, "{error}");
    error
}

fn forbidden<T: std::fmt::Debug>(result: Result<T>) -> Error {
    refused(Code::Forbidden, result)
}

/// Waits until this many calls wait.
async fn until(fleet: &Fleet, waiting: u64) {
    eventually("they wait", async || fleet.stats().waiting == waiting).await;
}

on_both! {
    async fn the_digests_of_live_keys_are_those_of_their_secrets(world: World) {
        let mut secrets = Vec::new();
        for name in ["c", "b", "a"] {
            secrets.push(world.fleet.call(key::Add::new(name, Access::Reader)).await.unwrap().secret);
        }
        world.fleet.call(key::Revoke::new("b")).await.unwrap();
        let [c, _, a] = [0, 1, 2].map(|n| key::digest(&secrets[n]));
        assert_eq!(world.fleet.live_keys(10).await.unwrap(), [a.clone(), c]);
        assert_eq!(world.fleet.live_keys(1).await.unwrap(), [a]);
    }

    /// SECURITY.md says so.
    async fn a_reader_sees_names_and_roles_of_keys_in_the_log_and_no_secret(world: World) {
        let reader = world.fleet.as_key(&key_of(&world.fleet, "eyes", Access::Reader).await);
        let secret = world.fleet.call(key::Add::new("ann", Access::Agent)).await.unwrap().secret;
        world.fleet.call(key::Revoke { reason: Some("left".into()), ..key::Revoke::new("ann") }).await.unwrap();
        forbidden(reader.call(key::List::default()).await);
        let of_key = event::List { resource: Some("key/ann".into()), ..event::List::default() };
        world.follow(of_key.clone()).await;
        let log = reader.call(of_key).await.unwrap().events;
        let log = serde_json::to_string(&log).unwrap();
        for part in ["key.added", r#""role":"agent""#, r#""for":"ann""#, "key.revoked", "left"] {
            assert!(log.contains(part), "{part} is not in {log}");
        }
        assert!(!log.contains(&secret[6..]) && !log.contains(&key::digest(&secret)), "{log}");
        let promised = include_str!("../../../../SECURITY.md");
        assert!(promised.contains("the event `key.added` has a key's name, role and agent, and `key.revoked` its name and the reason"));
    }

    async fn revoked_keys_are_pruned(world: World) {
        for name in ["one", "two", "three"] {
            world.fleet.call(key::Add::new(name, Access::Reader)).await.unwrap();
            world.fleet.call(key::Revoke::new(name)).await.unwrap();
        }
        let prune = async || world.fleet.call(admin::Prune::default()).await.unwrap().keys;
        assert_eq!(prune().await, 0);
        world.pass_in_use(31 * 24 * 3600).await;
        assert_eq!((prune().await, prune().await), (3, 0));
        assert!(world.fleet.requires_key().await.unwrap(), "the fleet knows that it had one");
    }

    async fn a_fleet_that_ever_had_a_key_requires_one(world: World) {
        assert!(!world.fleet.requires_key().await.unwrap());
        world.fleet.call(key::Add::new("eye", Access::Reader)).await.unwrap();
        world.fleet.call(key::Revoke::new("eye")).await.unwrap();
        assert!(world.fleet.requires_key().await.unwrap() && world.again().await.requires_key().await.unwrap());
    }

    async fn the_last_admins_key_is_revoked_only_by_force(world: World) {
        let revoke = async |name: &str| world.fleet.call(key::Revoke::new(name)).await;
        for (name, role) in [("kim", Access::Admin), ("lee", Access::Admin), ("eye", Access::Reader)] {
            world.fleet.call(key::Add::new(name, role)).await.unwrap();
        }
        // Two admins revoke each other's key at the same moment: one key stays.
        let both = tokio::join!(revoke("kim"), revoke("lee"));
        let (last, refusal) = match both {
            (Ok(_), Err(refusal)) => ("lee", refusal),
            (Err(refusal), Ok(_)) => ("kim", refusal),
            both => panic!("{both:?}"),
        };
        assert_eq!((refusal.code(), refusal.field("field")), (Code::Forbidden, Some(&"force".into())));
        assert!(refusal.hint_text().unwrap().contains(&format!("fence key revoke {last} --force")), "{refusal}");
        revoke("eye").await.expect("nobody needs a reader");
        // It works with another admin key, or by force. Repeating it changes nothing.
        world.fleet.call(key::Add::new("pat", Access::Admin)).await.unwrap();
        revoke(last).await.expect("it is not the last");
        forbidden(revoke("pat").await);
        for _twice in 0..2 {
            let forced = world.fleet.call(key::Revoke { force: true, ..key::Revoke::new("pat") }).await.unwrap();
            assert!(forced.key.revoked_at.is_some());
        }
        revoke("pat").await.expect("it is revoked already");
        // Opening the database directly always works.
        let secret = world.fleet.call(key::Add::new("kim", Access::Admin)).await.unwrap().secret;
        assert!(world.fleet.key(&secret).await.unwrap().is_some());
    }

    async fn a_secret_works_until_it_is_revoked(world: World) {
        let added = world.fleet.call(key::Add::new("ci", Access::Reader)).await.unwrap();
        assert!(added.secret.starts_with("fence_") && added.secret.len() == 6 + 64, "{}", added.secret.len());
        assert!(!format!("{added:?}").contains(&added.secret));
        assert_eq!(world.fleet.key(&added.secret).await.unwrap(), Some(added.key.clone()));
        // In another process, only the exact secret works.
        assert_eq!(world.again().await.key(&added.secret).await.unwrap(), Some(added.key.clone()));
        for wrong in ["", "fence_", &added.secret[..69], &format!("{}0", added.secret), &added.secret.to_uppercase()] {
            assert_eq!(world.fleet.key(wrong).await.unwrap(), None, "{wrong}");
        }

        let taken = refused(Code::Invalid, world.fleet.call(key::Add::new("ci", Access::Admin)).await);
        assert_eq!(taken.field("field"), Some(&"name".into()));
        for _twice in 0..2 {
            let revoked = world.fleet.call(key::Revoke::new("ci")).await.unwrap().key;
            assert!(revoked.revoked_at.is_some());
            assert_eq!(world.fleet.key(&added.secret).await.unwrap(), None);
        }
        refused(Code::NotFound, world.fleet.call(key::Revoke::new("cj")).await);

        // The name can be used again; the old secret stays revoked.
        let anew = world.fleet.call(key::Add::new("ci", Access::Admin)).await.unwrap();
        assert_ne!(anew.secret, added.secret);
        assert_eq!(world.fleet.key(&added.secret).await.unwrap(), None);
        let listed = world.fleet.call(key::List::default()).await.unwrap().keys;
        assert_eq!(listed, [anew.key]);
        let all = world.fleet.call(key::List { all: true, limit: None }).await.unwrap().keys;
        assert_eq!(all.len(), 2);

        // No read returns a secret or its digest.
        let log = world.log().await.join("\n");
        assert!(log.contains("key.added key/ci") && log.contains("key.revoked key/ci"), "{log}");
        assert!(!log.contains("fence_"), "{log}");
    }

    /// A waiting call checks its key again before it claims or replies.
    async fn a_key_that_is_revoked_while_it_waits_gets_nothing(world: World) {
        world.add("held").await;
        world.fleet.call(task::Claim::of("auth-1", "other")).await.unwrap();
        let (ann, eye) = (
            as_agent_key(&world.fleet, "ann").await,
            world.fleet.as_key(&key_of(&world.fleet, "eye", Access::Reader).await),
        );
        let since = world.fleet.call(event::List { last: Some(1), ..event::List::default() }).await.unwrap().position;
        let wait_ms = Some(Millis::minutes(10));
        let claims = {
            let claim = task::Claim { wait_ms, ..task::Claim::next("auth", "r-ann") };
            tokio::spawn(async move { ann.call(claim).await.map(drop) })
        };
        let follows = {
            // It waits for the event of the last task: on PostgreSQL others' transactions may hold back the events before `since`.
            let resource = Some("task/auth-2".into());
            let list = event::List { since: Some(since), resource, wait_ms, ..event::List::default() };
            tokio::spawn(async move { eye.call(list).await.map(drop) })
        };
        until(&world.fleet, 2).await;
        // By then the name has another key.
        for name in ["ann", "eye"] {
            world.fleet.call(key::Revoke::new(name)).await.unwrap();
            world.fleet.call(key::Add::new(name, Access::Admin)).await.unwrap();
        }
        world.add("fresh").await;
        for waiting in [claims, follows] {
            refused(Code::Unauthorized, waiting.await.unwrap());
        }
        let task = world.show("auth-2").await;
        assert_eq!((task.status.as_str(), task.attempts), ("unassigned", 0), "nobody took it for a revoked key");
    }

    /// A call that waits without a key gets nothing once the fleet has a key.
    async fn a_waiter_without_a_key_gets_nothing_once_there_is_one(world: World) {
        world.add("held").await;
        world.fleet.call(task::Claim::of("auth-1", "other")).await.unwrap();
        let claim = task::Claim { wait_ms: Some(Millis::minutes(10)), ..task::Claim::next("auth", "r") };
        let (guest, local) = (world.fleet.as_guest(), world.fleet.clone());
        let (afar, here) = (claim.clone(), task::Claim { run: "here".into(), ..claim });
        let guest = tokio::spawn(async move { guest.call(afar).await.map(drop) });
        until(&world.fleet, 1).await;
        world.fleet.call(key::Add::new("kim", Access::Admin)).await.unwrap();
        let local = tokio::spawn(async move { local.call(here).await });
        until(&world.fleet, 2).await;
        world.add("fresh").await;
        refused(Code::Unauthorized, guest.await.unwrap());
        assert_eq!(local.await.unwrap().unwrap().claim.token, "task/auth-2@1", "it goes to the next who waits");
    }

    async fn every_role_calls_what_its_access_covers(world: World) {
        for role in [Access::Reader, Access::Agent, Access::Admin] {
            let named = key::Add { agent: (role == Access::Agent).then(|| "x".into()), ..key::Add::new(role.as_str(), role) };
            let secret = world.fleet.call(named).await.unwrap().secret;
            let fleet = world.fleet.as_key(&world.fleet.key(&secret).await.unwrap().unwrap());
            for entry in op::registry() {
                let request = least_request(&(entry.request)().to_value()).to_string();
                let answer = entry.call(&fleet, &request).await;
                let refused = answer.err().filter(|error| error.code() == Code::Forbidden);
                assert_eq!(refused.is_some(), role < entry.access, "{role:?} {}: {refused:?}", entry.name);
            }
            let transaction = fleet.transaction(|_| Box::pin(async { Ok(()) })).await;
            assert_eq!(transaction.is_ok(), role == Access::Admin);
        }
        let reader = world.fleet.as_key(&key_of(&world.fleet, "eyes", Access::Reader).await);
        let error = forbidden(reader.call(task::Add::new("auth", "one")).await);
        insta::allow_duplicates! {
            insta::assert_snapshot!(error.message(), @"key `eyes` has the role reader, and task/add needs agent");
        }
        // The refusal comes before the request is parsed.
        let entry = op::find("task/add").unwrap();
        forbidden(entry.call(&reader, "nonsense").await);
    }

    async fn an_agents_key_acts_as_its_agent(world: World) {
        let (ann, bob) = (as_agent_key(&world.fleet, "ann").await, as_agent_key(&world.fleet, "bob").await);
        ann.call(task::Add::new("auth", "one")).await.unwrap();
        assert_eq!(world.show("auth-1").await.creator.as_deref(), Some("ann"));
        let posed = task::Add { creator: Some("bob".into()), ..task::Add::new("auth", "two") };
        forbidden(ann.call(posed).await);

        // The agent may be left out, and no other can be named, not even with `as_agent`.
        let claimed = ann.as_agent("bob").call(task::Claim::of("auth-1", "r-ann")).await.unwrap().claim;
        assert_eq!(claimed.agent.as_deref(), Some("ann"));
        let posing = task::Claim { agent: Some("bob".into()), ..task::Claim::next("auth", "r-2") };
        let error = forbidden(ann.call(posing).await);
        insta::allow_duplicates! {
            insta::assert_snapshot!(error.message(), @"key `ann` is for agent `ann`: `bob` is another agent");
        }
        forbidden(ann.call(task::Ready { agent: Some("bob".into()), ..task::Ready::default() }).await);

        // Ann's key lists and claims the tasks that are assigned to ann.
        for to in ["ann", "bob"] {
            let add = task::Add { to: Some(to.into()), ..task::Add::new("auth", format!("for {to}")) };
            world.fleet.call(add).await.unwrap();
        }
        let ready = ann.call(task::Ready::default()).await.unwrap().tasks;
        assert_eq!(ready.iter().map(|task| task.title.as_str()).collect::<Vec<_>>(), ["for ann"]);
        assert_eq!(bob.call(task::Claim::next("auth", "r-bob")).await.unwrap().task.title, "for bob");
        forbidden(ann.call(task::Claim::next("auth", "r-bob")).await);

        let log = world.log().await;
        assert!(log.iter().any(|line| line.contains("task.added task/auth-1") && line.contains("/ann")), "{log:#?}");
    }

    async fn an_agents_key_leaves_others_claims_alone(world: World) {
        let (ann, bob) = (as_agent_key(&world.fleet, "ann").await, as_agent_key(&world.fleet, "bob").await);
        for title in ["one", "two", "three"] {
            world.add(title).await;
        }
        let mine = ann.call(task::Claim::of("auth-1", "r-ann")).await.unwrap().claim.token;
        let his = bob.call(task::Claim::of("auth-2", "r-bob")).await.unwrap().claim.token;
        let lock = bob.call(lock::Claim::new("deploy", "r-bob")).await.unwrap().claim.token;
        let nobodys = world.fleet.call(task::Claim::of("auth-3", "r-nobody")).await.unwrap().claim.token;
        let before = world.fleet.call(run::List::default()).await.unwrap();
        world.pass(1000);

        for token in [&his, &lock, &nobodys] {
            forbidden(ann.call(claim::Renew::new(token)).await);
            let error = forbidden(ann.call(claim::Release::new(token)).await);
            assert_eq!(error.field("agent"), Some(&"ann".into()));
        }
        for token in [&his, &nobodys] {
            forbidden(ann.call(task::Done::new(token)).await);
            forbidden(ann.call(task::Fail::new(token, "no")).await);
            forbidden(ann.call(task::Progress::new(token, "so")).await);
        }
        for run in ["r-bob", "r-nobody"] {
            forbidden(ann.call(run::Renew { run: run.into(), ttl_ms: None }).await);
            forbidden(ann.call(run::End { run: run.into(), ..run::End::default() }).await);
            forbidden(ann.call(lock::Claim::new("other", run)).await);
        }
        // A refused call does not renew the agent.
        let after = world.fleet.call(run::List::default()).await.unwrap();
        let ends = |runs: &run::list::Runs| runs.runs.iter().map(|run| run.expires_at).collect::<Vec<_>>();
        assert_eq!(ends(&after), ends(&before));

        // In a batch, her own claims are accepted and the others refused.
        let tasks = [&mine, &his].map(|token| task::done_many::Completion { token: token.clone(), output: None });
        let many = ann.call(task::DoneMany { tasks: tasks.to_vec() }).await.unwrap().results;
        assert_eq!((many[0].code(), many[1].code()), (None, Some(Code::Forbidden)));
        for token in [&his, &lock] {
            assert_eq!(world.guard(token).await, claim::Verdict::Ok);
        }
        // An admin's key may do all of this.
        let admin = world.fleet.as_key(&key_of(&world.fleet, "root", Access::Admin).await);
        admin.call(task::Done::new(&his)).await.unwrap();
        admin.call(run::End { run: "r-nobody".into(), ..run::End::default() }).await.unwrap();
    }

    async fn only_its_agent_decides_an_offer(world: World) {
        let (ann, bob) = (as_agent_key(&world.fleet, "ann").await, as_agent_key(&world.fleet, "bob").await);
        for title in ["one", "two"] {
            let offer = task::Add { offer: Some("bob".into()), ..task::Add::new("auth", title) };
            world.fleet.call(offer).await.unwrap();
        }
        let accept = |task: &str| task::Accept { task: task.into(), agent: "bob".into(), ..task::Accept::default() };
        forbidden(ann.call(accept("auth-1")).await);
        let reject = task::Reject { task: "auth-1".into(), agent: "bob".into(), reason: "no".into(), ..task::Reject::default() };
        forbidden(ann.call(reject.clone()).await);
        refused(Code::NotReady, ann.call(task::Claim::of("auth-1", "r-ann")).await);
        let review = bob.call(task::Claim::of("auth-1", "r-bob")).await.unwrap().claim.token;
        let posing = task::Accept { agent: "ann".into(), token: Some(review.clone()), ..accept("auth-1") };
        forbidden(ann.call(posing).await);
        bob.call(task::Accept { token: Some(review), ..accept("auth-1") }).await.unwrap();
        bob.call(task::Reject { task: "auth-2".into(), ..reject }).await.unwrap();
    }

    async fn a_lapsed_run_name_can_be_reused_by_another_agent(world: World) {
        let (ann, bob) = (as_agent_key(&world.fleet, "ann").await, as_agent_key(&world.fleet, "bob").await);
        ann.call(lock::Claim::new("deploy", "shell")).await.unwrap();
        forbidden(bob.call(lock::Claim::new("other", "shell")).await);
        world.pass(31 * 60);
        let taken = bob.call(lock::Claim::new("other", "shell")).await.unwrap().claim;
        assert_eq!(taken.agent.as_deref(), Some("bob"));
        let log = world.log().await;
        assert!(log.iter().any(|line| line.starts_with("run.ended run/shell")), "{log:#?}");
    }

    /// Inboxes and the fleet's own mailboxes and locks have names that anybody could write.
    async fn names_belong_to_an_agent_or_to_the_fleet(world: World) {
        let (ann, bob) = (as_agent_key(&world.fleet, "ann").await, as_agent_key(&world.fleet, "bob").await);
        let admin = world.fleet.as_key(&key_of(&world.fleet, "root", Access::Admin).await);
        let send = |text: &str| inbox::Send {
            agent: "bob".into(),
            text: text.into(),
            sender: Some("lead".into()),
            ..inbox::Send::default()
        };
        // A sender may claim any name; the message records the key's agent.
        let sent = ann.as_agent("lead").call(send("do it")).await.unwrap().item;
        let content = sent.content.unwrap();
        assert_eq!((content.sender.as_deref(), content.sent_by.as_deref()), (Some("lead"), Some("ann")));
        let unnamed = admin.call(send("by an operator")).await.unwrap().item.content.unwrap();
        assert_eq!((unnamed.sender.as_deref(), unnamed.sent_by), (Some("lead"), None));
        let held = inbox::Delegate { message: sent.id.to_string(), ..inbox::Delegate::default() };
        let origin = bob.call(held).await.unwrap().task.origin.unwrap();
        assert_eq!((&origin["sender"], &origin["sent_by"]), (&"lead".into(), &"ann".into()));

        // Nobody can push to them by name, with or without a key.
        let forged = serde_json::json!({ "source": "slack", "text": "x", "sent_by": "lead" });
        for mailbox in ["inbox/bob", "inbox/ann", "hooks/unmatched", "leads/finished", "wakeups/bob", "fence/x"] {
            for fleet in [&ann, &admin, &world.fleet] {
                let error = forbidden(fleet.call(mail::Push::new(mailbox, forged.clone())).await);
                assert_eq!(error.field("field"), Some(&"mailbox".into()), "{mailbox}");
                let item = |mailbox: &str| mail::push_many::Item { mailbox: mailbox.into(), ..Default::default() };
                let many = mail::PushMany { messages: vec![item("builds"), item(mailbox)], request: None };
                let error = forbidden(fleet.call(many).await);
                assert_eq!(error.field("field"), Some(&"messages[1].mailbox".into()));
            }
        }
        let hint = forbidden(ann.call(mail::Push::new("inbox/bob", "x")).await);
        insta::allow_duplicates! {
            insta::assert_snapshot!(hint.message(), @"mailbox `inbox/bob` is filled by inbox/send only");
            insta::assert_snapshot!(hint.hint_text().unwrap(), @"fence inbox send bob TEXT");
        }

        // Only their owner may claim from them and manage them.
        let claim = |mailbox: &str, run: &str| mail::Claim::next(mailbox, run);
        for mailbox in ["inbox/bob", "hooks/unmatched", "leads/finished", "wakeups/ann", "fence/x"] {
            forbidden(ann.call(claim(mailbox, "r-ann")).await);
            forbidden(ann.call(mail::Take { mailboxes: vec!["builds".into(), mailbox.into()], ..Default::default() }).await);
            forbidden(ann.call(mail::Configure { mailbox: mailbox.into(), ..Default::default() }).await);
            forbidden(ann.call(mail::Pause { mailbox: mailbox.into(), reason: None }).await);
            forbidden(ann.call(mail::Resume { mailbox: mailbox.into() }).await);
        }
        let left: i64 = 2;
        forbidden(ann.call(mail::Discard { messages: vec![left], reason: None }).await);
        forbidden(ann.call(mail::Redrive { messages: vec![left], mailbox: None }).await);
        let token = bob.call(claim("inbox/bob", "r-bob")).await.unwrap().claims[0].claim.token.clone();
        bob.call(claim::Release::new(token)).await.unwrap();

        // An operator may repair them, but not in another agent's name.
        for fleet in [&admin, &world.fleet] {
            let posing = mail::Claim { agent: Some("ann".into()), ..claim("inbox/bob", "r-posing") };
            let error = forbidden(fleet.call(posing).await);
            insta::allow_duplicates! {
                insta::assert_snapshot!(error.message(), @"mailbox `inbox/bob` is the inbox of agent `bob`, not of `ann`");
            }
            let token = fleet.call(claim("inbox/bob", "r-root")).await.unwrap().claims[0].claim.token.clone();
            fleet.call(claim::Release::new(token)).await.unwrap();
            fleet.call(mail::Discard { messages: vec![left], reason: None }).await.unwrap();
            fleet.call(mail::Redrive { messages: vec![left], mailbox: None }).await.unwrap();
            refused(Code::NoneReady, fleet.call(claim("hooks/unmatched", "r-root")).await);
        }

        // The same holds for the locks and runs of the servers' own jobs.
        forbidden(ann.call(lock::Claim::new("fence/expiry", "r-ann")).await);
        forbidden(ann.call(lock::Claim::new("deploy", "fence/serve-1")).await);
        forbidden(ann.call(task::Claim::next("auth", "fence/serve-1")).await);
        ann.call(lock::Claim::new("inbox/bob", "r-ann")).await.unwrap();
        let job = admin.call(lock::Claim::new("fence/expiry", "fence/serve-1")).await.unwrap().claim.token;
        forbidden(ann.call(claim::Release::new(&job)).await);
        admin.call(claim::Release::new(job)).await.unwrap();
    }
}
