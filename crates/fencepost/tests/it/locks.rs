//! Named locks. A fence is never given out twice: not after the name was pruned, not after a backup was restored, not
//! after a power cut.

use fencepost::{Code, Durability, Fleet, Millis, admin, claim, claim::Verdict, lock};
use fencepost_testing::{
    World, on_both,
    world::{code, options, refused},
};
use std::path::Path;

async fn take(fleet: &Fleet, name: &str, run: &str) -> claim::Claim {
    fleet.call(lock::Claim::new(name, run)).await.expect("the lock").claim
}

async fn give_back(fleet: &Fleet, claim: &claim::Claim) {
    fleet.call(claim::Release::new(&claim.token)).await.expect("released");
}

/// Claims and releases a lock this many times. Returns the last fence.
async fn use_lock(fleet: &Fleet, name: &str, times: usize) -> i64 {
    let mut fence = 0;
    for _ in 0..times {
        let claim = take(fleet, name, "user").await;
        assert!(claim.fence > fence, "{} after {fence}", claim.token);
        fence = claim.fence;
        give_back(fleet, &claim).await;
    }
    fence
}

on_both! {
    async fn a_lock_is_held_by_one_run(world: World) {
        let held = take(&world.fleet, "deploy", "a").await;
        assert_eq!(held.token, "lock/deploy@1");
        let error = refused(world.fleet.call(lock::Claim::new("deploy", "b")).await);
        assert_eq!(error.code(), Code::AlreadyClaimed);
        assert_eq!(error.field("holder"), Some(&"a".into()));
        assert_eq!(error.field("own"), Some(&false.into()));
        assert_eq!(error.field("fence"), Some(&1.into()));
        assert_eq!(error.field("expires_at"), Some(&held.expires_at.to_string().into()));

        let own = refused(world.fleet.call(lock::Claim::new("deploy", "a")).await);
        assert_eq!((own.code(), own.field("own")), (Code::AlreadyClaimed, Some(&true.into())));
        let resume = lock::Claim { resume: true, ..lock::Claim::new("deploy", "a") };
        assert_eq!(world.fleet.call(resume).await.unwrap().claim, held);
        let not_mine = lock::Claim { resume: true, ..lock::Claim::new("deploy", "b") };
        assert_eq!(code(world.fleet.call(not_mine).await), Code::AlreadyClaimed);

        give_back(&world.fleet, &held).await;
        assert_eq!(world.guard(&held.token).await, Verdict::LeaseExpired);
        assert_eq!(take(&world.fleet, "deploy", "b").await.token, "lock/deploy@2");
    }

    async fn an_operator_can_take_a_lock_away(world: World) {
        let held = take(&world.fleet, "deploy", "a").await;
        let unclaim = claim::Unclaim { resource: "lock/deploy".into(), reason: Some("stuck".into()) };
        let taken = world.fleet.call(unclaim.clone()).await.unwrap();
        assert_eq!((taken.held_by.as_deref(), taken.status.as_str()), (Some("a"), "free"));
        assert_eq!(world.guard(&held.token).await, Verdict::LeaseExpired);
        assert_eq!(code(world.fleet.call(claim::Release::new(&held.token)).await), Code::LeaseExpired);
        assert_eq!(world.fleet.call(unclaim).await.unwrap().held_by, None);
        assert_eq!(world.times("lock.unclaimed").await, 1);
    }

    async fn fences_rise_for_ever_and_each_resource_has_its_own(world: World) {
        assert_eq!(use_lock(&world.fleet, "deploy", 5).await, 5);
        assert_eq!(use_lock(&world.fleet, "other", 1).await, 1);
        take(&world.fleet, "deploy", "a").await;
        world.end("a").await;
        assert_eq!(take(&world.fleet, "deploy", "b").await.fence, 7);
        let id = world.add("first").await;
        assert_eq!(world.claim(&id, "a").await.unwrap(), "task/auth-1@1");
    }

    async fn a_pruned_locks_fence_goes_on(world: World) {
        let last = use_lock(&world.fleet, "deploy", 5).await;
        let held = take(&world.fleet, "held", "a").await;
        let id = world.add("first").await;
        world.pass_in_use(15 * 86_400).await;
        world.fleet.call(fencepost::run::Renew { run: "a".into(), ttl_ms: None }).await.unwrap_err();
        let held_again = lock::Claim { ttl_ms: Some(Millis::days(30)), ..lock::Claim::new("held", "b") };
        let held_again = world.fleet.call(held_again).await.unwrap().claim;
        assert!(held_again.fence > held.fence);
        world.pass_in_use(16 * 86_400).await;
        let pruned = world.fleet.call(admin::Prune::default()).await.unwrap();
        assert_eq!(pruned.locks, 1, "not the one that is held");
        assert_eq!(world.guard(&held_again.token).await, Verdict::Ok);

        assert_eq!(world.guard("lock/deploy@5").await, Verdict::NotFound);
        let back = take(&world.fleet, "deploy", "c").await;
        assert!(back.fence > last, "{}", back.token);
        assert_eq!(world.guard("lock/deploy@5").await, Verdict::AlreadyClaimed);
        assert!(use_lock(&world.fleet, "never-seen", 1).await > last, "no name begins below the floor");
        assert!(world.claim(&id, "c").await.is_ok());
    }

    async fn after_a_restore_every_fence_is_above_every_earlier_one(world: World) {
        let id = world.add("first").await;
        let old = world.claim(&id, "a").await.unwrap();
        let last = use_lock(&world.fleet, "deploy", 3).await;
        let floor = world.fleet.call(admin::Restored {}).await.unwrap().floor;
        assert!(floor > last);
        assert_eq!(use_lock(&world.fleet, "deploy", 1).await, floor + 1);
        assert_eq!(use_lock(&world.fleet, "new", 1).await, floor + 1);
        world.end("a").await;
        assert_eq!(world.claim(&id, "b").await.unwrap(), format!("task/auth-1@{}", floor + 1));
        assert_eq!(code(world.done(&old).await), Code::LeaseExpired);
        let again = world.fleet.call(admin::Restored {}).await.unwrap().floor;
        assert!(again > floor + 1, "the clock stood still, and fences above the floor were given out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_gives_out_no_fence_again() {
    let world = World::sqlite().await;
    let id = world.add("first").await;
    world.claim(&id, "a").await.unwrap();
    use_lock(&world.fleet, "deploy", 2).await;
    let backup = Path::new(&world.url).with_file_name("backup.db");
    world.fleet.backup(&backup).await.unwrap();
    assert_eq!(code(world.fleet.backup(&backup).await), Code::Invalid, "a backup overwrites nothing");

    world.end("a").await;
    let lost = world.claim(&id, "b").await.unwrap();
    let last = use_lock(&world.fleet, "deploy", 7).await;
    let elsewhere = use_lock(&world.fleet, "after-the-backup", 4).await;

    world.pass(1);
    let restored = world.at(&backup.display().to_string()).await;
    assert_eq!(restored.guard(&lost).await, Verdict::NotFound);
    assert!(use_lock(&restored.fleet, "deploy", 1).await > last);
    assert!(use_lock(&restored.fleet, "after-the-backup", 1).await > elsewhere);
    restored.end("a").await;
    let again = restored.claim(&id, "b").await.unwrap();
    assert_ne!(again, lost);
    assert_eq!(code(restored.done(&lost).await), Code::LeaseExpired);
    restored.done(&again).await.unwrap();
    restored.assert_sound().await;

    let reopened = restored.reopened().await;
    let next = use_lock(&reopened.fleet, "deploy", 1).await;
    assert_eq!(use_lock(&reopened.fleet, "deploy", 1).await, next + 1, "it jumps once, not at every start");
}

/// With `NORMAL` a power cut may lose the last commits, and the fences in them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_normal_durability_fences_jump_after_a_reboot() {
    let world = World::sqlite().await;
    let normal = || {
        let mut options = options(&world.clock);
        options.durability = Durability::Normal;
        options
    };
    let fleet = Fleet::open_with(&world.url, normal()).await.unwrap();
    let before = use_lock(&fleet, "deploy", 3).await;
    assert_eq!(before, 3);
    drop(fleet);
    let same_boot = Fleet::open_with(&world.url, normal()).await.unwrap();
    assert_eq!(use_lock(&same_boot, "deploy", 1).await, 4, "the process ended, not the machine");
    drop(same_boot);

    world.clock.reboot();
    for durability in [Durability::Full, Durability::Normal] {
        let mut options = options(&world.clock);
        options.durability = durability;
        let booted = Fleet::open_with(&world.url, options).await.unwrap();
        let fence = use_lock(&booted, "deploy", 1).await;
        assert!(fence > 1_000_000_000_000, "{durability:?}: {fence}");
    }
    world.reopened().await.assert_sound().await;
}
