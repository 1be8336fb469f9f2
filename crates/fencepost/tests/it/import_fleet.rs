//! Importing agents, inboxes and channels, and tasks that are assigned.

use fencepost::{
    Code, admin,
    admin::import::{Import, Imported},
};
use fencepost_testing::{World, on_both, world::refused};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// One of everything, as another system had it a day ago.
fn fleet() -> Value {
    json!({ "source": "swarm",
        "agents": [
            { "name": "lead", "role": "lead", "max_concurrent": 3, "joined_at": "2025-12-01T00:00:00Z" },
            { "name": "bob", "capabilities": ["rust"] },
        ],
        "channels": [{ "name": "general", "creator": "lead", "members": ["lead", "bob"], "created_at": "2025-12-01T00:00:00Z" }],
        "posts": [
            { "id": "p1", "channel": "general", "body": "one", "author": "lead", "mentions": ["bob", "lead"], "at": "2025-12-31T10:00:00Z" },
            { "id": "p2", "channel": "general", "body": "two", "author": "bob", "mentions": ["lead"], "reply_to": "p1", "at": "2025-12-31T11:00:00Z" },
            { "id": "p3", "channel": "general", "body": "three", "mentions": ["bob"], "at": "2025-12-31T12:00:00Z" },
        ],
        "cursors": [
            { "agent": "lead", "channel": "general", "read_until": "2025-12-31T11:00:00Z" },
            { "agent": "bob", "channel": "general", "read_until": "2025-12-31T11:59:59Z" },
        ],
        "messages": [
            { "id": "m1", "agent": "lead", "content": { "source": "slack", "text": "hello", "channel": "C1", "thread": "1.2", "sender": "U1", "matched": "@lead", "data": { "x": 1 } }, "created_at": "2025-12-31T10:00:00Z" },
            { "id": "m2", "agent": "lead", "content": { "source": "slack", "text": "seen" }, "status": "read", "finished_at": "2025-12-31T11:00:00Z" },
            { "id": "m3", "agent": "lead", "content": { "source": "slack", "text": "who?" }, "status": "responded", "response": "me", "created_at": "2025-12-31T10:00:00Z", "finished_at": "2025-12-31T11:00:00Z" },
            { "id": "m4", "agent": "lead", "content": { "source": "slack", "text": "do it" }, "status": "delegated", "task": "auth-1" },
        ],
    })
}

fn request(value: Value) -> Import {
    serde_json::from_value(value).expect("an import")
}

async fn bring(world: &World, value: Value) -> Imported {
    world.fleet.call(request(value)).await.expect("imported")
}

/// For each kind: how many were new, and how many existed.
fn counts(reply: &Imported) -> [(usize, usize); 5] {
    [&reply.agents, &reply.channels, &reply.posts, &reply.cursors, &reply.messages]
        .map(|taken| (taken.imported.len(), taken.existing.len()))
}

on_both! {
    async fn an_imported_fleet_keeps_its_state(world: World) {
        let mut dry = fleet();
        dry["dry_run"] = true.into();
        assert_eq!(counts(&bring(&world, dry).await), [(2, 0), (1, 0), (3, 0), (2, 0), (4, 0)]);
        assert!(world.log().await.is_empty(), "nothing was changed");
        assert_eq!(counts(&bring(&world, fleet()).await), [(2, 0), (1, 0), (3, 0), (2, 0), (4, 0)]);
        let mut shown = Vec::new();
        for (op, ask) in [
            ("agent/list", json!({})),
            ("channel/list", json!({})),
            ("channel/unread", json!({ "agent": "bob" })),
            ("channel/read", json!({ "channel": "general", "agent": "eve", "peek": true })),
            ("inbox/list", json!({ "agent": "lead", "all": true })),
        ] {
            shown.push(world.call(op, &ask).await.unwrap().to_string());
        }
        insta::allow_duplicates! {
            insta::assert_snapshot!(shown.join("\n"));
        }
        let before = world.log().await;
        let again = bring(&world, fleet()).await;
        assert_eq!(counts(&again), [(0, 2), (0, 1), (0, 3), (0, 2), (0, 4)]);
        assert!(!format!("{again:?}").contains("here,"), "nothing differs: {again:?}");
        assert_eq!(world.log().await, before);
    }

    /// Mentions that were read in the other system trigger nothing; unread ones trigger once.
    async fn unread_items_of_the_other_system_trigger_here(world: World) {
        bring(&world, fleet()).await;
        world.story("
            agent/poll lead run=l1     -> type=inbox_message claims=message/1@1 count=1
            agent/poll lead run=l2     -> trigger=none
            agent/poll bob run=b1      -> type=unread_mentions channels=general:3-3 claims=mentions/bob/general@1
            agent/poll bob run=b2      -> trigger=none
            run/settle l1              -> settled=message/1@1
            run/settle b1              -> settled=mentions/bob/general@1
            agent/poll bob run=b3      -> trigger=none
        ").await;
        // Handled here meanwhile: reported, and left unchanged.
        let again = bring(&world, fleet()).await;
        assert_eq!(again.messages.existing[0].differs, ["status: read here, unread there"]);
        assert_eq!(counts(&again)[4], (0, 4));
        world.story("
            agent/poll lead run=l4     -> trigger=none
            agent/poll bob run=b4      -> trigger=none
        ").await;
    }

    /// The other system went on for a while: a second import adds only new items, after the posts that were made here.
    async fn a_second_import_adds_only_new_items(world: World) {
        bring(&world, fleet()).await;
        world.story("
            agent/poll bob run=b1                         -> channels=general:3-3
            channel/post general body=@bob author=eve     -> post.n=4
        ").await;
        let mut later = fleet();
        for (id, at) in [("p4", "2025-12-31T13:00:00Z"), ("p5", "2025-12-31T14:00:00Z")] {
            let post = json!({ "id": id, "channel": "general", "body": id, "mentions": ["bob"], "reply_to": "p3", "at": at });
            later["posts"].as_array_mut().unwrap().push(post);
        }
        // Later than every post here so far.
        later["cursors"][1]["read_until"] = "2026-01-01T12:30:00Z".into();
        later["agents"][1]["capabilities"] = json!(["rust", "db"]);
        later["agents"][1]["role"] = json!("lead");
        let reply = bring(&world, later).await;
        assert_eq!(counts(&reply), [(0, 2), (0, 1), (2, 3), (0, 2), (0, 4)]);
        let held = "read_until: a run holds the mentions; import again once it is settled";
        assert_eq!(reply.cursors.existing[1].differs, [held]);
        assert_eq!(
            reply.agents.existing[1].differs,
            ["role: worker here, lead there", "capabilities: rust here, rust db there"]
        );
        // Post 3 was read in the other system meanwhile, but a run holds it here; post 4 was made here, and is unread there.
        world.story("
            guard mentions/bob/general@1   -> ok=true
            run/settle b1                  -> settled=mentions/bob/general@1
            agent/poll bob run=b2          -> channels=general:4-6 count=3
        ").await;
    }

    async fn imported_tasks_keep_their_agents(world: World) {
        let tasks = json!({ "tasks": [
            { "id": "s-1", "title": "mine", "to": "bob", "accepted_at": "2025-12-31T10:00:00Z" },
            { "id": "s-2", "title": "maybe", "offer": "bob", "offered_at": "2025-12-31T10:00:00Z" },
            { "id": "s-3", "title": "no", "rejection_reason": "hard" },
            { "id": "s-4", "title": "told", "status": "completed", "to": "bob", "output": "x", "finished_at": "2025-06-01T00:00:00Z" },
            { "id": "s-5", "title": "untold", "status": "completed", "to": "bob", "notify": true, "finished_at": "2025-06-01T00:00:00Z" },
            { "id": "s-6", "title": "untold", "status": "failed", "failure_reason": "boom", "notify": true },
            { "id": "s-7", "title": "later", "to": "bob", "parked": "paused" },
            { "id": "s-8", "title": "not yet", "to": "bob", "after": ["s-3"] },
            { "id": "s-9", "title": "gone", "status": "cancelled", "to": "bob" },
        ]});
        world.call("task/import", &tasks).await.unwrap();
        bring(&world, fleet()).await;
        // Finished long ago in the other system: kept until a lead is notified.
        world.fleet.call(admin::Prune::default()).await.unwrap();
        world.story("
            show s-1 -> pending assignee=bob accepted_at=2025-12-31T10:00:00.000Z
            show s-2 -> offered offered_to=bob offered_at=2025-12-31T10:00:00.000Z
            show s-3 -> unassigned rejection_reason=hard
            show s-9 -> cancelled assignee=bob
            agent/poll lead run=l1 accept=tasks_finished -> tasks=s-5,s-6 count=2
            agent/poll lead run=l2 accept=tasks_finished -> trigger=none
            agent/poll bob run=b1  -> type=task_offered claims=task/s-2@1
            agent/poll bob run=b2  -> type=unread_mentions
            agent/poll bob run=b3  -> type=task_assigned claims=task/s-1@1
            agent/poll bob run=b4  -> type=pool_task claims=task/s-3@1
            agent/poll bob run=b5  -> trigger=none
        ").await;
    }

    /// An imported agent that never polled here is not silent yet, but its tasks do not wait for ever.
    async fn assigned_tasks_wait_for_the_agents_first_poll(world: World) {
        let tasks = json!({ "tasks": [
            { "id": "s-1", "title": "bob's", "to": "bob" },
            { "id": "s-2", "title": "the lead's", "to": "lead" },
        ]});
        world.call("task/import", &tasks).await.unwrap();
        bring(&world, fleet()).await;
        let settle = async || for _ in 0..3 {
            world.fleet.call(admin::Expire::default()).await.unwrap();
        };
        world.story("+259200s agent/poll bob run=b1 -> type=unread_mentions").await;
        settle().await;
        world.story("
            show s-1                  -> pending assignee=bob
            show s-2                  -> pending assignee=lead
            run/settle b1             -> run.alive=false
            +2160s show s-1           -> unassigned
            show s-2                  -> pending
        ").await;
        settle().await;
        world.story("
            show s-1                  -> unassigned
            show s-2                  -> pending assignee=lead
            +2332800s show s-2        -> unassigned
        ").await;
        settle().await;
        world.story("show s-2 -> unassigned").await;
    }

    async fn an_invalid_fleet_is_refused_whole(world: World) {
        let but = |path: &str, value: Value| {
            let mut request = fleet();
            *request.pointer_mut(path).unwrap() = value;
            request
        };
        for (request, field) in [
            (but("/source", json!("a b")), "source"),
            (but("/agents/0/name", json!("a b")), "agents[0].name"),
            (but("/agents/0/max_concurrent", json!(0)), "agents[0].max_concurrent"),
            (but("/channels/0/members/0", json!("a/b")), "channels[0].members"),
            (but("/posts/1/reply_to", json!("p9")), "posts[1].reply_to"),
            (but("/posts/2/id", json!("p1")), "posts[2].id"),
            (but("/posts/2/body", json!(" ")), "posts[2].body"),
            (but("/messages/2/status", json!("read")), "messages[2].response"),
            (but("/messages/0/content/text", json!("")), "messages[0].content.text"),
            (but("/messages/3/task", json!("x")), "messages[3].task"),
            (but("/messages/1/id", json!("m1")), "messages[1].key"),
        ] {
            let error = world.fleet.call(self::request(request)).await.expect_err(field);
            assert_eq!((error.code(), error.field("field").unwrap().as_str()), (Code::Invalid, Some(field)), "{error}");
        }
        let said = refused(world.call("admin/import", &but("/posts/0/channel", json!("nowhere"))).await);
        assert_eq!(said.code(), Code::NotFound, "{said}");
        assert!(world.log().await.is_empty());
        for (field, item) in [
            ("offer", json!({ "status": "completed", "offer": "bob" })),
            ("offered_at", json!({ "offered_at": "2025-12-31T10:00:00Z" })),
            ("notify", json!({ "status": "cancelled", "notify": true })),
            ("offer", json!({ "to": "bob", "offer": "bob" })),
        ] {
            let mut task = item.clone();
            (task["id"], task["title"]) = (json!("s-1"), json!("x"));
            let said = refused(world.call("task/import", &json!({ "tasks": [task] })).await);
            assert_eq!(said.field("field").unwrap(), field, "{item}: {said}");
        }
    }

    /// Two imports of the same fleet at once, and a post meanwhile.
    async fn racing_imports_add_everything_once(world: World) {
        bring(&world, json!({ "source": "swarm", "channels": [{ "name": "general" }] })).await;
        let mut racing = JoinSet::new();
        for _ in 0..4 {
            let at = world.fleet.clone();
            racing.spawn(async move { counts(&at.call(request(fleet())).await.expect("imported")) });
        }
        for _ in 0..8 {
            let at = world.fleet.clone();
            racing.spawn(async move {
                let post = json!({ "channel": "general", "body": "@bob", "mentions": ["bob"] });
                let post: fencepost::channel::Post = serde_json::from_value(post).unwrap();
                at.call(post).await.expect("posted");
                Default::default()
            });
        }
        let mut sum = [0; 5];
        while let Some(done) = racing.join_next().await {
            let done = done.expect("no panic");
            (0..5).for_each(|kind| sum[kind] += done[kind].0);
        }
        assert_eq!((sum[2], sum[4]), (3, 4), "{sum:?}");
        let posts = world.call("channel/read", &json!({ "channel": "general", "agent": "eve", "peek": true })).await.unwrap();
        assert_eq!(posts["posts"].as_array().unwrap().len(), 11);
    }
}
