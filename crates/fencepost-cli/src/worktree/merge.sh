# Merges a COMMIT of branch BRANCH into branch INTO:  sh -c SCRIPT merge REPOSITORY TREE BRANCH INTO MESSAGE COMMIT
#
# exit 0  merged, or INTO contains COMMIT already
#      1  they conflict; standard output has the files, one per line
#      2  something is in the way, or failed; standard error says what
#      3  the command in FENCE_MERGE_GUARD refused
# With 1, 2 and 3 nothing was changed.
#
# The script may be killed at any moment. The merge is made in a tree of its own, TREE, and INTO moves in one step at the end, only
# if it still is where the merge began. A tree that a killed script left is removed by the next one, and by `Repository::sweep`.
#
# No hook runs in TREE: nobody has set it up, so a hook that runs tests or a linter could only fail.
set -u
repository=$1 tree=$2 branch=$3 into=$4 message=$5 commit=$6

stop() { code=$1; shift; printf '%s\n' "$*" >&2; exit "$code"; }

# The settings are those of `SETTINGS` in git.rs.
git() {
    command git -c core.fsmonitor=false -c maintenance.auto=false -c gc.auto=0 -c rerere.enabled=false "$@"
}
in_tree() { git -C "$tree" -c core.hooksPath=/dev/null "$@"; }

# A work tree whose directory is gone is removed from git's list, too; a locked one only with two --force.
remove_tree() { rm -rf -- "$tree"; git worktree remove --force --force "$tree" 2>/dev/null; }

cd "$repository" || exit 2

# One script at a time uses TREE. The lock ends with the last process that holds it.
exec 9>>"$tree.busy" || exit 2
if command -v flock >/dev/null; then flock 9 || exit 2; fi
remove_tree
trap remove_tree EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

old=$(git rev-parse --quiet --verify "refs/heads/$into^{commit}") || stop 2 "there is no branch \`$into\`"
tip=$(git rev-parse --quiet --verify "$commit^{commit}") || stop 2 "there is no branch \`$branch\`"
if git merge-base --is-ancestor "$tip" "$old"; then stop 0 "\`$into\` contains \`$branch\` already"; fi

# Another git may be changing the list of work trees: see `is_contended` in git.rs.
attempts=0
until output=$(LC_ALL=C; export LC_ALL; git -c core.hooksPath=/dev/null worktree add --quiet --detach "$tree" "$old" 2>&1); do
    attempts=$((attempts + 1))
    case $output in
        *'failed to read'*worktrees/* | *'could not create directory of'*worktrees/*) ;;
        *) stop 2 "$output" ;;
    esac
    [ "$attempts" -lt 50 ] || stop 2 "$output"
    sleep 0.1
done

# A user without an identity gets ours: git would make one up, or refuse.
if ! git -c user.useConfigOnly=true var GIT_AUTHOR_IDENT >/dev/null 2>&1; then
    export GIT_AUTHOR_NAME="fence work" GIT_AUTHOR_EMAIL=work@fence.invalid
fi
if ! git -c user.useConfigOnly=true var GIT_COMMITTER_IDENT >/dev/null 2>&1; then
    export GIT_COMMITTER_NAME="fence work" GIT_COMMITTER_EMAIL=work@fence.invalid
fi
# Not signed: nobody is there to type the passphrase.
if ! output=$(in_tree merge --no-ff --no-edit --no-verify --no-gpg-sign --no-verify-signatures --no-autostash \
    --no-squash --commit --no-log --no-stat -m "$message" "$tip" 2>&1)
then
    files=$(in_tree diff --name-only --no-relative --diff-filter=U)
    if [ -z "$files" ]; then stop 2 "$output"; fi
    printf '%s\n' "$files"
    stop 1 "\`$branch\` conflicts with \`$into\`"
fi
new=$(in_tree rev-parse --verify HEAD) || exit 2

if [ -n "${FENCE_MERGE_GUARD:-}" ]; then
    sh -c "$FENCE_MERGE_GUARD" 9>&- >&2 || stop 3 "the guard refused: \`$into\` stays as it is"
fi

attempts=0
until where=$(git for-each-ref --format='%(worktreepath)' "refs/heads/$into"); do
    attempts=$((attempts + 1))
    [ "$attempts" -lt 50 ] || exit 2
    sleep 0.1
done
# A bare repository has a HEAD, but no files that would have to follow.
if [ -z "$where" ] || [ "$(git -C "$where" rev-parse --is-inside-work-tree 2>&1)" = false ]; then
    output=$(git update-ref -m "fence work: merge $branch" "refs/heads/$into" "$new" "$old" 2>&1) ||
        stop 2 "\`$into\` was not moved: $output"
    exit 0
fi

# INTO is checked out, and a person's files follow it. A git that is killed while it writes files leaves half of them, so this one
# git leaves our process group, and does not carry the mark (FENCE_RUN) of our processes. It takes as long as one checkout, and does
# no harm if we lost our claim meanwhile: it moves INTO only if INTO is still where the merge began.
log=$(in_tree rev-parse --absolute-git-dir)/move.log
follow() {
    unset FENCE_RUN
    set -- git -C "$where" -c maintenance.auto=false -c gc.auto=0 merge --quiet --ff-only --no-autostash \
        --no-overwrite-ignore --no-verify-signatures --no-stat "$new"
    if command -v setsid >/dev/null; then exec setsid "$@"; else exec "$@"; fi
}
attempts=0
while :; do
    if [ "$(git -C "$where" symbolic-ref --quiet HEAD)" != "refs/heads/$into" ]; then
        stop 2 "\`$into\` was not moved: $where has another branch now, or is gone"
    fi
    if (follow) </dev/null 2>"$log" 9>&-; then exit 0; fi
    # Another git works in that tree for a moment.
    attempts=$((attempts + 1))
    if ! grep -q 'index\.lock' "$log" || [ "$attempts" -ge 50 ]; then break; fi
    sleep 0.1
done
stop 2 "\`$into\` was not moved: it is checked out in $where, and git says: $(cat "$log")"
