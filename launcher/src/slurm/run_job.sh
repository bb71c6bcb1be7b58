
# The prologue may have changed this. Failed commands must not end the script.
set +e
# The coordinator writes its report for this script into this file.
LAMBERT_JOB_REPORT=$(mktemp) || LAMBERT_JOB_REPORT=''
export LAMBERT_JOB_REPORT
trap 'rm -f "$LAMBERT_JOB_REPORT"' EXIT
code=@STOPPED@
for _ in 1 2 3 4; do
    if [ -n "$received_signal" ]; then break; fi
    @COORDINATOR@ &
    coordinator=$!
    # Forward a signal that arrived before coordinator= was set.
    if [ -n "$received_signal" ]; then kill -s "$received_signal" "$coordinator" 2>/dev/null; fi
    while kill -0 "$coordinator" 2>/dev/null; do wait "$coordinator"; done
    wait "$coordinator"
    code=$?
    if [ "$code" -le 128 ]; then break; fi
    if [ -n "$received_signal" ]; then
        # The signal arrived before the coordinator had installed its handlers; no rank had started.
        if [ "$code" -eq $((128 + $(kill -l "$received_signal"))) ]; then code=@STOPPED@; fi
        break
    fi
    # The coordinator was killed, which also ends its ranks. The next coordinator resumes from the newest checkpoint.
    echo "lambert: the coordinator was killed by SIG$(kill -l "$code")" >&2
done
failed_nodes='' own_node=@OWN_NODE@
case $code in
@USAGE@)
    # The coordinator ended before it started a rank. If the job has started before, this node is set up differently.
    if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ ! -s "$LAMBERT_JOB_REPORT" ]; then
        echo "lambert: node $SLURMD_NODENAME seems to be misconfigured" >&2
        code=@FAILED@ failed_nodes=$own_node
    fi
    ;;
# The program or its file system is not available on this node; another node may have it.
126 | 127) code=@FAILED@ failed_nodes=$own_node ;;
esac
if [ "$code" -gt 125 ]; then code=@FAILED@; fi
case $code in @STOPPED@ | @FAILED@) ;; *) exit "$code" ;; esac

# Retries a command of Slurm. While the controller cannot be contacted, it also enforces no time limit, so the script waits
# for @OUTAGE_HOURS@ hours. A refusal of the controller is final. After other errors, retries for two minutes.
retry() {
    local begun=$SECONDS pause=2 tries=0 error printed=''
    until { error=$("$@" 2>&1 >&3); } 3>&1; do
        tries=$((tries + 1))
        if [ "$error" != "$printed" ]; then printf '%s\n' "$error" >&2; fi
        printed=$error
        case $error in
        *'ontact slurm controller'* | *'backup controller'* | *'ocket timed out'* | *'Zero Bytes'* | *'ommunication'*'failure'* | *'Message '*' failure'* | *'Unexpected message'*)
            if [ $((SECONDS - begun)) -ge $((3600 * @OUTAGE_HOURS@)) ]; then return 1; fi
            # Once the controller is back, it ends jobs that are beyond their time limit within half a minute.
            sleep $((pause < 10 ? pause : 10))
            ;;
        *'ermission denied'* | *'Invalid job id'* | *'presently disabled'*) return 1 ;;
        *)
            if [ "$tries" -gt 6 ]; then return 1; fi
            sleep "$pause"
            ;;
        esac
        pause=$((pause < 32 ? 2 * pause : 60))
    done
}
# shellcheck disable=SC2317  # retry calls it
job_field() { squeue --noheader --jobs="$SLURM_JOB_ID" --format="$1"; }
# shellcheck disable=SC2317  # retry calls it
requeue_running() {
    local state
    state=$(job_field %T) || return
    # If an earlier request was executed and only its reply was lost, the job is no longer running.
    [ "$state" != RUNNING ] || scontrol requeue "$SLURM_JOB_ID"
}
# Splits the job comment into lambert's part at its end and `others`, the text before it. lambert's part has the number of
# `failures` since the furthest checkpoint was at `counted_step`, and the nodes that it has `excluded`, separated by spaces.
# Versions up to 0.2 store only the number.
read_comment() {
    # The text of others may have bytes that are not characters of the locale.
    local LC_ALL=C
    others=$1 failures=0 counted_step='' excluded=''
    if [ "$others" = '(null)' ]; then others=''; fi
    if [[ $1 =~ ^(.*\;\ )?lambert:\ ([0-9]{1,6})\ failures(,\ step\ ([0-9]{1,15}))?(,\ excluded\ ([A-Za-z0-9._,-]+))?$ ]]; then
        others=${BASH_REMATCH[1]%; } failures=$((10#${BASH_REMATCH[2]})) counted_step=${BASH_REMATCH[4]}
        excluded=${BASH_REMATCH[6]//,/ }
    fi
}
# Prints the job comment for the given excluded nodes.
comment_with() {
    local count="lambert: $failures failures${counted_step:+, step $counted_step}${1:+, excluded ${1// /,}}"
    if [ "$failures" -eq 0 ] && [ -z "$counted_step$1" ]; then count=''; fi
    printf %s "$others${others:+${count:+; }}$count"
}
# Sets `step` to the step of the furthest checkpoint, and `failed_nodes` to the nodes to exclude. Without a report, the
# coordinator was killed or did not start, and `step` is empty. The nodes that are excluded then remain so: at most two, the newest
# first.
step=''
read_report() {
    local reported='' node
    if [ -r "$LAMBERT_JOB_REPORT" ]; then
        while read -r key value; do
            case $key in
            step) if [[ $value =~ ^[0-9]{1,15}$ ]]; then step=$((10#$value)); fi ;;
            exclude) failed_nodes=$value reported=yes ;;
            esac
        done <"$LAMBERT_JOB_REPORT"
    fi
    if [ -n "$reported" ]; then return; fi
    for node in $excluded; do
        if ! has "$failed_nodes" "$node"; then failed_nodes+="${failed_nodes:+ }$node"; fi
    done
    # shellcheck disable=SC2086  # one word a node
    set -- $failed_nodes
    failed_nodes="${1-}${2+ $2}"
}
has() { [[ " $1 " == *" $2 "* ]]; }
# Chooses the nodes of the next start. Sets `exclusion` to the new ExcNodeList of the job: the nodes that a user has excluded,
# and as many of `failed_nodes` as leave enough nodes in the partition. Sets `chosen` to the latter, separated by spaces. Fails
# if nothing changes, or if Slurm does not answer.
choose_nodes() {
    local before nodes kept='' usable='' known='' node state count=0
    if [ -z "$failed_nodes$excluded" ]; then return 1; fi
    before=$(job_field %x) || return
    if [ "$before" = '(null)' ]; then before=''; fi
    if [ -n "$before" ]; then before=$(scontrol show hostnames "$before") || return; fi
    nodes=$(sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --format='%N %t') || return
    for node in $before; do has "$excluded" "$node" || kept+="$node "; done
    while read -r node state; do
        if has "$known" "$node"; then continue; fi
        known+=" $node"
        if has "$kept" "$node"; then continue; fi
        case $state in down* | drain* | drng* | fail* | unk* | *'*') ;; *) usable+=" $node" count=$((count + 1)) ;; esac
    done <<<"$nodes"
    chosen=''
    for node in $failed_nodes; do
        if has "$kept" "$node" || ! has "$known" "$node"; then continue; fi
        if has "$usable" "$node"; then
            if [ "$count" -le "$SLURM_JOB_NUM_NODES" ]; then
                echo "lambert: node $node is not excluded, because partition $SLURM_JOB_PARTITION has too few other nodes" >&2
                continue
            fi
            count=$((count - 1))
        fi
        chosen+="${chosen:+ }$node"
    done
    exclusion=$(echo "$kept$chosen" | tr -s ' ' ',')
    exclusion=${exclusion%,}
    if [ "$chosen" = "$excluded" ]; then return 1; fi
    # Other options, such as a constraint, may need a node. Slurm would hold a job that no node fits.
    if [ -n "$chosen" ] && ! sbatch --test-only --exclude="$exclusion" "$0" >/dev/null 2>&1; then
        echo "lambert: $chosen: not excluded, because the job could then never start" >&2
        return 1
    fi
}
# Requeues the job, and then changes its excluded nodes, which Slurm permits only for pending jobs. The job cannot start
# before the credential of its last start has expired.
requeue() {
    local change='' comment=''
    if choose_nodes; then change=yes comment=$(comment_with "$chosen"); fi
    echo "lambert: $1: requeuing the job" >&2
    if ! retry requeue_running; then
        echo "lambert: Slurm did not requeue the job; submit it again" >&2
    elif [ -n "$change" ]; then
        echo "lambert: excluded nodes of the next start: ${chosen:-none}" >&2
        retry scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$exclusion" Comment="$comment" ||
            echo "lambert: Slurm did not exclude these nodes" >&2
    fi
}
# Counts a failure. The count starts again after a checkpoint that is further than that of the last failure.
count_failure() {
    if [ -n "$step" ] && [ -n "$counted_step" ] && [ "$step" -gt "$counted_step" ]; then failures=0; fi
    if [ "${step:-0}" -gt "${counted_step:-0}" ] || [ -z "$counted_step" ]; then counted_step=$step; fi
    failures=$((failures + 1))
}
# shellcheck disable=SC2317  # retry calls it
keep_comment() {
    scontrol update JobId="$SLURM_JOB_ID" Comment="$1" && [ "$(job_field %k)" = "$1" ]
}

# Slurm sends SIGTERM to all processes of a job that it requeues or preempts. Commands and subshells that the script starts from
# here on must not end early: they ignore the signals, and Slurm kills them after KillWait.
trap '' TERM USR1
# Slurm may already be ending or requeuing the job: scancel, a preemption, a failed node. Then nothing is counted.
state=$(retry job_field %T)
if [ -z "$state" ]; then
    echo "lambert: cannot query the job state from Slurm, so the job is not requeued; submit it again" >&2
fi
if [ "$state" != RUNNING ]; then exit "$code"; fi
if comment=$(retry job_field %k); then
    read_comment "$comment"
    read_report
elif [ "$code" -eq @FAILED@ ]; then
    echo "lambert: cannot query the failure count from Slurm, so the job is not requeued; submit it again" >&2
    exit "$code"
else
    read_comment ''
fi
if [ "$code" -eq @STOPPED@ ]; then
    # A checkpoint since the last failure starts the count again. After a failure without a step, the next step is the reference.
    if [ "$failures" -gt 0 ] && [ -n "$step" ] && [ "$step" -gt "${counted_step:--1}" ]; then
        if [ -n "$counted_step" ]; then failures=0; fi
        counted_step=$step
        keep_comment "$(comment_with "$excluded")"
    fi
    requeue 'stopped by the time limit or a preemption'
    exit "$code"
fi
count_failure
if [ "$failures" -gt @REQUEUES@ ]; then
    echo "lambert: failure $failures since the last new checkpoint: slurm.requeues is @REQUEUES@, so the job is not requeued" >&2
elif retry keep_comment "$(comment_with "$excluded")"; then
    requeue "failure $failures"
else
    echo "lambert: failure $failures: cannot store this count in the job's comment, so the job is not requeued; submit it again" >&2
fi
exit "$code"
