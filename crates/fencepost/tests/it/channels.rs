//! Channels: posts in order, mentions as rows, and a cursor that moves to the last post that was read.

use fencepost::{admin, agent, channel};
use fencepost_testing::{World, on_both};

on_both! {
    /// A post must not start runs for ever: after three failed runs it triggers none, until the next mention.
    async fn mentions_are_not_tried_for_ever(world: World) {
        world.story("
            agent/join bob                              -> agent.name=bob
            channel/create c                            -> existing=false
            channel/post c body=@bob author=x           -> post.n=1
            agent/poll bob run=r1                       -> claims=mentions/bob/c@1
            run/settle r1 outcome=failed reason=x       -> settled=mentions/bob/c@1
            agent/poll bob run=r2                       -> claims=mentions/bob/c@2
            run/settle r2 outcome=released              -> back=mentions/bob/c@2
            agent/poll bob run=r3                       -> claims=mentions/bob/c@3
            +61s agent/poll bob run=r4                  -> claims=mentions/bob/c@4
            run/settle r4 outcome=failed reason=x       -> settled=mentions/bob/c@4
            agent/poll bob run=r5                       -> trigger=none
            channel/post c body=@bob author=x           -> post.n=2
            agent/poll bob run=r6                       -> channels=c:1-2
            run/settle r6                               -> settled=mentions/bob/c@5
            agent/poll bob run=r7                       -> trigger=none
        ").await;
        assert_eq!(world.times("mentions.failed").await, 1);
    }

    /// `@Lead` means `lead`, wherever it stands as a word. The reply lists names that no agent has.
    async fn mentions_ignore_case(world: World) {
        world.story("
            agent/join lead                             -> agent.name=lead
            agent/join Bob                              -> agent.name=Bob
            agent/join bob                              -> agent.name=bob
            agent/join gone                             -> agent.name=gone
            agent/leave gone                            -> agent.name=gone
            channel/create c                            -> existing=false
            channel/create d                            -> existing=false
            channel/join c agent=Eve                    -> agent=Eve
            channel/post c body=bob@lead.com            -> post.mentions=none unknown=none
            channel/post c body=@Lead,@EVE:@nobody.     -> post.mentions=Eve,lead unknown=nobody
            channel/post c body=@bob                    -> post.mentions=bob unknown=none
            channel/post c body=@BOB                    -> post.mentions=none unknown=BOB
            channel/post c body=@gone                   -> post.mentions=none unknown=gone
            channel/post d body=@eve                    -> post.mentions=none unknown=eve
            channel/post c body=@LEAD author=lead       -> post.mentions=none unknown=none
            channel/post c body=@Zoe mentions=kim       -> post.mentions=kim unknown=none
            channel/post c body=@zoe request=r1         -> post.n=8 unknown=zoe
            agent/join zoe                              -> agent.name=zoe
            channel/post c body=@zoe request=r1         -> post.n=8 unknown=zoe
            channel/post c body=@zoe                    -> post.n=9 post.mentions=zoe
            agent/poll lead run=r                       -> claims=mentions/lead/c@1
        ").await;
    }

    /// Pruning removes the oldest posts, up to the first that a present agent has not read.
    async fn old_posts_are_pruned_once_read(world: World) {
        world.story("
            agent/join bob                              -> agent.name=bob
            agent/join eve                              -> agent.name=eve
            agent/join gone                             -> agent.name=gone
            channel/create c                            -> existing=false
            channel/join c agent=bob                    -> agent=bob
            channel/post c body=@gone author=x          -> post.n=1
            channel/post c body=two author=x            -> post.n=2
            channel/post c body=@eve author=x           -> post.n=3
            channel/post c body=four author=x           -> post.n=4
            channel/post c body=five author=x           -> post.n=5
        ").await;
        let prune = async || world.fleet.call(admin::Prune::default()).await.unwrap().posts;
        let first = async || {
            let (channel, agent) = ("c".into(), "x".into());
            let read = channel::Read { channel, agent, from: Some(1), peek: true, ..Default::default() };
            world.fleet.call(read).await.unwrap().posts[0].n
        };
        assert_eq!(prune().await, 0, "they are new");
        world.pass_in_use(31 * 24 * 3600).await;
        world.story("
            agent/join bob                              -> agent.name=bob
            agent/join eve                              -> agent.name=eve
        ").await;
        assert_eq!((prune().await, first().await), (0, 1), "bob has read none of them");
        world.story("channel/read c agent=bob limit=3   -> cursor=3").await;
        assert_eq!((prune().await, first().await), (0, 1), "eve was not told yet");
        world.story("
            agent/poll eve run=e1                       -> claims=mentions/eve/c@1
            run/settle e1                               -> settled=mentions/eve/c@1
        ").await;
        assert_eq!((prune().await, first().await), (3, 4), "what nobody is there for is not kept");
        world.story("channel/read c agent=bob           -> cursor=5").await;
        assert_eq!((prune().await, first().await), (1, 5), "the last stays");
        world.story("
            channel/post c body=@gone author=x          -> post.n=6
            agent/poll gone run=g1                      -> channels=c:2-6
        ").await;
        world.assert_sound().await;
    }

    /// A claim past its cap cannot be settled.
    async fn mentions_are_not_settled_after_their_cap(world: World) {
        world.story("
            agent/join bob                              -> agent.name=bob
            channel/create c                            -> existing=false
            channel/post c body=@bob author=x           -> post.n=1
            agent/poll bob run=r1 max_ms=2000           -> claims=mentions/bob/c@1
            +3s run/settle r1                           -> settled=none lost=mentions/bob/c@1
            agent/poll bob run=r2                       -> claims=mentions/bob/c@2
        ").await;
    }

    /// The leads are notified of a lost task even if its holder was a lead.
    async fn leads_hear_of_a_task_that_a_lead_lost(world: World) {
        world.story("
            agent/join lead role=lead                   -> agent.role=lead
            add risky max_attempts=1                    -> auth-1
            claim auth-1 run=l1 agent=lead ttl_ms=1000  -> task/auth-1@1
            +2s agent/poll lead run=l2                  -> type=tasks_finished tasks=auth-1
        ").await;
    }

    async fn posts_are_numbered_and_read_from_the_cursor(world: World) {
        world.story("
            channel/create general                  -> existing=false
            channel/create general                  -> existing=true
            channel/post nowhere body=x             -> refused not_found
            channel/post general body=one author=a  -> post.n=1
            channel/post general body=two author=b reply_to=1 -> post.reply_to=1
            channel/post general body=three key=k   -> post.n=3 existing=false
            channel/post general body=three key=k   -> post.n=3 existing=true
            channel/post general body=x reply_to=9  -> refused invalid field=reply_to
            channel/read general agent=a limit=2    -> posts=1,2 cursor=2 more=true
            channel/read general agent=a            -> posts=3 cursor=3 more=false
            channel/read general agent=a            -> posts=none cursor=3
            channel/read general agent=b peek=true  -> posts=1,2,3 cursor=0
            channel/read general agent=b from=3     -> posts=3 cursor=0
            channel/unread b                        -> channels=none
            channel/join general agent=b            -> agent=b
        ").await;
        let unread = world.fleet.call(channel::Unread { agent: "b".into() }).await.unwrap().channels;
        assert_eq!((unread[0].posts, unread[0].mentions), (3, 0));
    }

    /// The first read; a mention during another; two mentions in one post; another run of the same agent.
    async fn mentions_are_claimed_and_trigger_again(world: World) {
        world.story("
            agent/join bob                               -> agent.name=bob
            agent/join eve                               -> agent.name=eve
            channel/create c                             -> existing=false
            channel/post c body=hi author=x              -> post.n=1
            channel/post c body=@bob,@eve,@nobody author=x -> post.mentions=bob,eve
            agent/poll bob run=b1                        -> channels=c:1-2 claims=mentions/bob/c@1 count=1
            agent/poll bob run=b2                        -> trigger=none
            agent/poll eve run=e1                        -> channels=c:1-2
            channel/post c body=@bob author=x            -> post.n=3
            agent/poll bob run=b2                        -> trigger=none
            run/settle b1                                -> settled=mentions/bob/c@1
            agent/poll bob run=b3                        -> channels=c:3-3 claims=mentions/bob/c@2
            channel/read c agent=bob                     -> posts=3 cursor=2 held_by=b3
            guard mentions/bob/c@2                       -> ok=true
            channel/post c body=@bob author=bob          -> post.mentions=none
            channel/post c body=@bob author=x            -> post.n=5
            channel/read c agent=bob token=mentions/bob/c@2 limit=1 -> posts=3 cursor=2 more=true
            channel/read c agent=bob token=mentions/bob/c@2 from=4 -> posts=4,5 cursor=2 more=false
            guard mentions/bob/c@2                       -> ok=true
            run/settle b3                                -> settled=mentions/bob/c@2
            guard mentions/bob/c@2                       -> ok=false
            agent/poll bob run=b4                        -> channels=c:4-5
            release mentions/bob/c@3                     -> unread
            agent/poll bob run=b5                        -> channels=c:4-5
            end b5                                       -> run.alive=false
            agent/poll bob run=b6                        -> claims=mentions/bob/c@5
            unclaim mentions/bob/c                       -> held_by=b6
            channel/read c agent=bob                     -> posts=4,5 cursor=5 held_by=none
            agent/poll bob run=b7                        -> trigger=none
        ").await;
    }

    /// Reading with or without the claim does not move the cursor: if the run dies, another run gets the mention.
    async fn a_mention_that_was_read_is_not_lost_with_its_run(world: World) {
        world.story("
            agent/join bob                                    -> agent.name=bob
            channel/create c                                  -> existing=false
            channel/post c body=@bob author=x                 -> post.n=1
            agent/poll bob run=b1                             -> claims=mentions/bob/c@1
            channel/read c agent=bob token=mentions/bob/c@1   -> posts=1 cursor=0 held_by=b1
            channel/read c agent=bob                          -> posts=1 cursor=0 held_by=b1
            channel/read c agent=bob request=q                -> posts=1 cursor=0 held_by=b1
            channel/read c agent=bob from=1                   -> posts=1 cursor=0
            guard mentions/bob/c@1                            -> ok=true
            agent/poll bob run=b1                             -> claims=mentions/bob/c@1
            +61s agent/poll bob run=b2                        -> claims=mentions/bob/c@2
            channel/read c agent=bob token=mentions/bob/c@1   -> refused lease_expired
            channel/read c agent=bob token=mentions/bob/c@2   -> posts=1 cursor=0
            run/settle b1                                     -> refused lease_expired
            run/settle b2                                     -> settled=mentions/bob/c@2
            channel/read c agent=bob                          -> posts=none cursor=1 held_by=none
            agent/poll bob run=b3                             -> trigger=none
            channel/post c body=@bob author=x                 -> post.n=2
            agent/poll bob run=b4                             -> claims=mentions/bob/c@3
            +61s channel/read c agent=bob                     -> posts=2 cursor=2 held_by=none
            agent/poll bob run=b5                             -> trigger=none
        ").await;
        assert_eq!(world.times("mentions.read").await, 2, "by a settling, and by a read of what nobody held");
    }

    /// The trigger carries the posts, also when the poll is repeated. Long conversations are cut to the limit.
    async fn a_trigger_carries_the_posts(world: World) {
        world.story("
            agent/join bob                     -> agent.name=bob
            channel/create c                   -> existing=false
            channel/create d                   -> existing=false
            channel/post c body=before         -> post.n=1
            channel/post c body=@bob,look author=x -> post.n=2
        ").await;
        let post = |channel: &str, body: String| channel::Post {
            channel: channel.into(), body, mentions: Some(vec!["bob".into()]), ..Default::default()
        };
        for _ in 0..6 {
            world.fleet.call(post("d", "x".repeat(200_000))).await.unwrap();
        }
        let poll = || agent::Poll { agent: "bob".into(), run: "b1".into(), ..Default::default() };
        let first = world.fleet.call(poll()).await.unwrap().trigger.expect("a trigger");
        let again = world.fleet.call(poll()).await.unwrap().trigger;
        assert_eq!(again.as_ref(), Some(&first));
        let (c, d) = (&first.channels[0], &first.channels[1]);
        assert_eq!((c.from, c.to, c.posts.len()), (1, 2, 1));
        let said = &c.posts[0];
        assert_eq!((said.n, said.body.as_str(), said.author.as_deref()), (2, "@bob,look", Some("x")));
        assert_eq!((d.mentions.len(), d.posts.len()), (6, 5), "a mebibyte in all");
    }
}
