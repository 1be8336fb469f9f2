//! Exporting a whole fleet and importing it into another.

use fencepost::{
    Code, Millis,
    admin::{
        export::{Export, Page, SOURCE},
        import::{Import, MailState},
    },
    key, mail, op,
    op::Access,
    task,
};
use fencepost_testing::{World, on_both, sample_fleet, world::refused};
use serde_json::{Value, json};

/// All pages as one, and their number.
async fn export(world: &World, limit: i64, boards: &[&str]) -> (Page, usize) {
    let (mut all, mut pages, mut after) = (Page::default(), 0, None);
    loop {
        let boards = boards.iter().map(ToString::to_string).collect();
        let page = world.fleet.call(Export { after, limit: Some(limit), boards }).await.expect("a page");
        pages += 1;
        all.agents.extend(page.agents);
        all.channels.extend(page.channels);
        all.posts.extend(page.posts);
        all.cursors.extend(page.cursors);
        all.routes.extend(page.routes);
        all.boards.extend(page.boards);
        all.tasks.extend(page.tasks);
        all.mailboxes.extend(page.mailboxes);
        all.mail.extend(page.mail);
        all.floor = page.floor;
        after = page.next;
        if after.is_none() {
            return (all, pages);
        }
    }
}

/// For each kind: how many were new, how many were there already, and how many were there but differ.
async fn import(world: &World, page: Page, dry_run: bool) -> (usize, usize, Vec<String>) {
    let tasks = task::Import { tasks: page.tasks, dry_run, request: None };
    let rest = Import {
        source: SOURCE.into(),
        agents: page.agents,
        channels: page.channels,
        posts: page.posts,
        cursors: page.cursors,
        routes: page.routes,
        mailboxes: page.mailboxes,
        mail: page.mail,
        boards: page.boards,
        floor: page.floor,
        dry_run,
        ..Import::default()
    };
    let rest = world.fleet.call(rest).await.expect("the rest comes");
    let tasks = world.fleet.call(tasks).await.expect("tasks come");
    let kinds = [
        rest.agents,
        rest.channels,
        rest.posts,
        rest.cursors,
        rest.routes,
        rest.mailboxes,
        rest.mail,
        rest.boards,
    ];
    let new = tasks.imported.len() + kinds.iter().map(|kind| kind.imported.len()).sum::<usize>();
    let there = tasks.existing.len() + kinds.iter().map(|kind| kind.existing.len()).sum::<usize>();
    let differs = kinds.iter().flat_map(|kind| &kind.existing).flat_map(|there| there.differs.clone());
    (new, there, differs.collect())
}

async fn fill(world: &World) {
    for (name, request) in sample_fleet::calls() {
        let entry = op::find(name).expect("an op");
        entry
            .serve(&world.fleet, request.as_bytes())
            .await
            .unwrap_or_else(|e| panic!("{name} {request}: {e}"))
            .delivery
            .delivered();
    }
}

/// The expected export of the copy: the same without holders.
fn unheld(mut page: Page) -> Page {
    let owned = page.tasks.iter().filter(|task| task.owner.is_some()).map(|task| task.id.clone());
    assert_eq!(owned.collect::<Vec<_>>(), ["auth-9", "auth-11", "auth-14"]);
    page.tasks.iter_mut().for_each(|task| task.owner = None);
    page
}

on_both! {
    async fn a_fleet_goes_to_either_database_and_back(world: World) {
        fill(&world).await;
        let (first, _) = export(&world, 1000, &[]).await;
        let (small, pages) = export(&world, 2, &[]).await;
        assert_eq!(small, first, "however small the pages are");
        assert!(pages > 20, "{pages}");
        insta::allow_duplicates! {
            insta::assert_snapshot!("export", lines(&first));
        }
        for other in [World::sqlite().await, World::postgres().await] {
            // A day later, so that no time is in the future.
            other.pass(86_400 / 2);
            let (new, there, _) = import(&other, first.clone(), true).await;
            assert_eq!(there, 0);
            assert!(other.log().await.is_empty(), "a dry run writes nothing");
            assert_eq!(import(&other, first.clone(), false).await, (new, 0, vec![]));
            let (copy, _) = export(&other, 1000, &[]).await;
            assert_eq!(copy, unheld(first.clone()));
            other.assert_sound().await;

            let log = other.log().await;
            assert_eq!(import(&other, first.clone(), false).await, (0, new, vec![]), "a second time changes nothing");
            assert_eq!(other.log().await, log);

            // A claim there is above every claim here.
            let claimed = other.claim("auth-9", "there").await.unwrap();
            assert_eq!(claimed, format!("task/auth-9@{}", first.floor.unwrap() + 1));

            // Importing it back into the original finds everything there.
            let log = world.log().await;
            assert_eq!(import(&world, copy, false).await.0, 0);
            assert_eq!(world.log().await, log);
        }
    }

    /// An export has no secrets, no claims and no requests.
    async fn no_secret_and_no_claim_leaves_the_fleet(world: World) {
        fill(&world).await;
        let secret = world.fleet.call(key::Add::new("hidden-key", Access::Admin)).await.unwrap().secret;
        world.call("lock/claim", &json!({ "name": "hidden-lock", "run": "hidden-run" })).await.unwrap();
        let digests = world.fleet.transaction(|tx| {
            Box::pin(async move {
                let rows = tx.query("select digest from access_key", vec![]).await?;
                rows.iter().map(|row| row.get::<String>("digest")).collect::<fencepost::Result<Vec<_>>>()
            })
        });
        let digests = digests.await.unwrap();
        assert!(digests.len() > 1, "{digests:?}");
        let (page, _) = export(&world, 1000, &[]).await;
        let text = serde_json::to_string(&page).unwrap();
        let hidden = ["hidden-key", "hidden-lock", "hidden-run", "bob-1"].map(str::to_owned);
        for hidden in hidden.iter().chain([&secret]).chain(&digests) {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
    }

    /// A completion clears the payload and adds the outputs in one transaction: an export sees both, or neither.
    async fn a_message_completed_during_an_export_is_exported_whole(world: World) {
        const MESSAGES: i64 = 300;
        let push = |n| mail::push_many::Item { mailbox: "box".into(), payload: Some("x".into()), key: Some(format!("k{n}")), ..Default::default() };
        world.fleet.call(mail::PushMany { messages: (0..MESSAGES).map(push).collect(), request: None }).await.unwrap();
        let works = world.again().await;
        let work = tokio::spawn(async move {
            for _ in 0..MESSAGES / 3 {
                let claim = mail::Claim { mailboxes: vec!["box".into()], run: "r".into(), count: Some(3), ttl_ms: Some(Millis::minutes(10)), ..mail::Claim::default() };
                let claims = works.call(claim).await.unwrap().claims;
                for taken in claims {
                    let done = mail::Done { token: taken.claim.token, outputs: vec!["y".into()], ..mail::Done::default() };
                    works.call(done).await.unwrap();
                }
            }
        });
        let mut looked = 0;
        while !work.is_finished() || looked == 0 {
            let mail = export(&world, 1000, &[]).await.0.mail;
            assert_eq!(mail.len() as i64, MESSAGES);
            for item in mail {
                let is_pending = item.payload.is_some() && item.outputs.is_empty();
                let is_processed = item.payload.is_none() && item.outputs.len() == 1;
                assert_eq!((is_pending, is_processed), (item.status == MailState::Pending, item.status == MailState::Processed), "{item:?}");
            }
            looked += 1;
        }
        work.await.unwrap();
    }

    async fn boards_can_be_exported_alone(world: World) {
        fill(&world).await;
        let (page, _) = export(&world, 3, &["web"]).await;
        assert_eq!(page.tasks.iter().map(|task| task.id.as_str()).collect::<Vec<_>>(), ["web-1", "web-2"]);
        assert_eq!(page.boards.iter().map(|board| (board.name.as_str(), board.next)).collect::<Vec<_>>(), [("web", 3)]);
        assert!(page.agents.is_empty() && page.mail.is_empty());
        assert_eq!(export(&world, 3, &["nosuch"]).await.0.tasks, []);
    }

    /// Long texts make short pages, so that the size of a reply is bounded.
    async fn a_page_is_bounded_by_its_bytes(world: World) {
        let body = "x".repeat(250_000);
        for n in 0..9 {
            let add = json!({ "board": "auth", "title": n.to_string(), "body": body });
            world.call("task/add", &add).await.unwrap();
            world.call("mail/push", &json!({ "mailbox": "box", "payload": body })).await.unwrap();
        }
        world.call("channel/create", &json!({ "channel": "general" })).await.unwrap();
        for _ in 0..9 {
            world.call("channel/post", &json!({ "channel": "general", "body": body })).await.unwrap();
        }
        let mut after = Value::Null;
        let mut largest = 0;
        loop {
            let page = world.call("admin/export", &json!({ "after": after, "limit": 1000 })).await.unwrap();
            largest = largest.max(page.to_string().len());
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
        assert!(largest < 1_200_000 && largest > 900_000, "{largest}");
        let (page, _) = export(&world, 1000, &[]).await;
        assert_eq!((page.tasks.len(), page.posts.len(), page.mail.len()), (9, 9, 9));
    }

    /// Items of another fleet with the same names and numbers are different items.
    async fn same_names_in_another_fleet_are_other_items(world: World) {
        let other = World::sqlite().await;
        other.pass(60);
        for world in [&world, &other] {
            world.call("channel/create", &json!({ "channel": "general" })).await.unwrap();
            world.call("channel/post", &json!({ "channel": "general", "body": "one" })).await.unwrap();
            world.call("mail/push", &json!({ "mailbox": "box", "payload": 1 })).await.unwrap();
        }
        let (mut page, _) = export(&other, 1000, &[]).await;
        world.pass(120);
        page.tasks = vec![task::import::Item { id: "x-1".into(), title: "x".into(), ..Default::default() }];
        // The channel and the mailbox exist; the post, the message and the task differ.
        assert_eq!(import(&world, page, false).await, (3, 2, vec![]));
        world.add("mine").await;
        other.add("theirs").await;
        let (page, _) = export(&other, 1000, &["auth"]).await;
        let error = refused(world.fleet.call(task::Import { tasks: page.tasks, ..Default::default() }).await);
        assert_eq!(error.field("task").unwrap(), "auth-1");
    }

    /// A used number is not used again, even if its task is gone.
    async fn boards_continue_their_numbers_after_an_import(world: World) {
        let boards = json!({ "source": "x", "boards": [{ "name": "auth", "next": 8 }] });
        world.call("admin/import", &boards).await.unwrap();
        assert_eq!(world.add("eighth").await, "auth-8");
        let again = world.call("admin/import", &boards).await.unwrap();
        assert_eq!(again["boards"]["existing"][0]["id"], "auth");
        assert_eq!(world.add("ninth").await, "auth-9");
    }

    async fn an_invalid_import_is_refused_by_field(world: World) {
        world.call("mail/configure", &json!({ "mailbox": "loose" })).await.unwrap();
        let before = world.log().await;
        let mut said = Vec::new();
        for rest in [
            json!({ "mail": [{ "key": "", "mailbox": "box" }] }),
            json!({ "mail": [{ "key": "k", "mailbox": "b x" }] }),
            json!({ "mail": [{ "key": "k", "mailbox": "box", "payload": "{" }] }),
            json!({ "mail": [{ "key": "k", "mailbox": "box" }, { "key": "k", "mailbox": "box" }] }),
            json!({ "mail": [{ "key": "k", "mailbox": "loose", "lane": "a" }] }),
            json!({ "mailboxes": [{ "name": "tight", "strict": true }], "mail": [{ "key": "k", "mailbox": "tight", "priority": 1 }] }),
            json!({ "mail": [{ "key": "k", "mailbox": "box", "outputs": ["1"] }] }),
            json!({ "mail": [{ "key": "k", "mailbox": "box", "status": "processed", "outputs": ["nope"] }] }),
            json!({ "mail": [{ "key": "k", "mailbox": "box", "attempts": 4 }] }),
            json!({ "mail": [{ "key": "k", "mailbox": "box", "checkpoint": { "ordinal": 0, "phase": "x" } }] }),
            json!({ "mailboxes": [{ "name": "b x" }] }),
            json!({ "mailboxes": [{ "name": "m", "ttl_ms": 1 }] }),
            json!({ "routes": [{ "source": "slack", "agent": "b x" }] }),
            json!({ "routes": [{ "source": "slack", "agent": "bob" }, { "source": "slack", "agent": "eve" }] }),
            json!({ "boards": [{ "name": "auth", "next": 0 }] }),
            json!({ "floor": -1 }),
            json!({ "agents": [{ "name": "bob", "strand_ms": -1 }] }),
        ] {
            let mut request = rest;
            request["source"] = "x".into();
            let error = refused(world.call("admin/import", &request).await);
            said.push(error.to_string());
        }
        assert_eq!(world.log().await, before);
        insta::allow_duplicates! {
            insta::assert_snapshot!(said.join("\n"), @r#"
            invalid: `mail[0].key` is empty
            invalid: `mail[0].mailbox` has a ' ': letters, digits and any of `._-:/` are allowed
            invalid: `mail[0].payload` is JSON that cannot be read: EOF while parsing an object at line 1 column 1
            invalid: `mail[1].key` `k` is given twice
            invalid: `mail[0].lane` is for strict mailboxes, and this one is not
            invalid: `mail[0].priority` cannot be given: a strict mailbox keeps to the order of its messages
            invalid: `mail[0].outputs` is only for a message that is processed
            invalid: `mail[0].outputs` is JSON that cannot be read: expected ident at line 1 column 2
            invalid: `mail[0].attempts` is 4; it must be between 0 and 3
            invalid: `mail[0].checkpoint.ordinal` is 0; it must be between 1 and 9223372036854775807
            invalid: `mailboxes[0].name` has a ' ': letters, digits and any of `._-:/` are allowed
            invalid: `mailboxes[0].ttl_ms` is 1 ms; it must be between 1s and 30d
            invalid: `routes[0].agent` has a ' ': letters, digits and any of `._-` are allowed
            invalid: `routes[1]` `source slack` is given twice
            invalid: `boards[0].next` is 0; it must be between 1 and 1000000001
            invalid: `floor` is -1; it must be between 0 and 9007199254740992
            invalid: `agents[0].strand_ms` is -1 ms; it must be between 0s and 30d
            "#);
        }
    }
}

/// One item per line, with invisible characters escaped.
fn lines(page: &Page) -> String {
    let page = serde_json::to_value(page).unwrap();
    let mut lines = Vec::new();
    for (kind, items) in page.as_object().unwrap() {
        match items {
            Value::Array(items) => lines.extend(items.iter().map(|item| format!("{kind} {item}"))),
            other => lines.push(format!("{kind} {other}")),
        }
    }
    let shown = |c: char| if c.is_ascii() { c.to_string() } else { c.escape_unicode().to_string() };
    lines.join("\n").chars().map(shown).collect()
}

#[test]
fn export_needs_an_admin() {
    let entry = op::find("admin/export").unwrap();
    assert_eq!((entry.access, entry.reads), (Access::Admin, true));
}

#[tokio::test]
async fn an_invented_page_position_is_refused() {
    let world = World::sqlite().await;
    for after in ["", "nonsense", "tasks:x", "mail:1@2", "posts:general", "posts:general/x", "cursors:bob"] {
        let error = refused(world.call("admin/export", &json!({ "after": after })).await);
        assert_eq!(
            (error.code(), error.field("field").unwrap().as_str()),
            (Code::Invalid, Some("after")),
            "{after}"
        );
    }
    let error = refused(world.call("admin/export", &json!({ "after": "mail", "boards": ["auth"] })).await);
    assert_eq!(error.code(), Code::Invalid);
}
