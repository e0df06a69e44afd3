//! The table of cases: one module a rule of the contract, and each case a function that fails by a
//! panic.

mod admin;
mod rule_01_exclusion;
mod rule_02_wait;
mod rule_03_lease;
mod rule_04_renewal;
mod rule_05_release;
mod rule_06_fencing;
mod rule_07_names;
mod rule_08_queue;
mod rule_09_between_processes;
mod rule_10_resources;
mod rule_11_cancel;
mod rule_12_not_reentrant;
mod rule_13_nothing_silent;

use crate::rig::{Outcome, Rig};

/// One line of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Rig<'_>) -> Outcome,
}

macro_rules! table {
    ($($rule:ident: $($case:ident),+;)+) => {
        &[$($(Case {
            name: concat!(stringify!($rule), "::", stringify!($case)),
            run: $rule::$case,
        }),+),+]
    };
}

pub(crate) static TABLE: &[Case] = table! {
    rule_01_exclusion:
        hundred_threads,
        two_keepers_of_one_process,
        two_keepers_of_one_provider,
        four_processes,
        every_request_has_an_owner_of_its_own;
    rule_02_wait:
        deadlines_in_line,
        deadlines_in_the_store,
        no_wait_is_one_attempt,
        hundred_attempts_and_one_is_granted,
        hundred_attempts_of_two_keepers_and_one_is_granted,
        a_busy_lock_times_out,
        trouble_is_told_to_all_who_ask,
        no_answer_is_busy_for_nobody,
        unknown_stays_unknown,
        out_of_reach_is_neither_busy_nor_granted;
    rule_03_lease:
        a_fixed_lease_runs_out_and_its_guard_knows_first,
        late_renewal_is_refused,
        late_release_frees_nobody_elses,
        the_lease_counts_from_before_the_request,
        killed_holder_is_followed_within_the_ttl,
        dead_owner_is_followed_at_once,
        dead_owner_without_a_funeral_is_followed_at_once,
        stopped_holder_finds_itself_lost;
    rule_04_renewal:
        held_over_five_ttls,
        renewal_by_hand,
        failing_and_working_again_in_time,
        failing_and_working_again_too_late,
        out_of_reach_and_back_in_time,
        out_of_reach_and_back_too_late,
        a_slow_store_keeps_its_leases,
        a_panic_ends_no_renewal,
        one_call_that_hangs_costs_nobody_else,
        none_after_release,
        keeper_dropped_before_its_guards;
    rule_05_release:
        frees_at_once,
        dropped_while_panicking,
        on_another_thread,
        on_another_thread_while_others_wait,
        ended_behind_its_back_and_released,
        ended_behind_its_back_and_renewed,
        out_of_reach,
        an_observer_that_panics_does_no_harm;
    rule_06_fencing:
        grows_over_keepers,
        grows_over_threads_and_hand_overs,
        grows_over_processes,
        grows_over_a_wiped_store,
        grows_over_a_store_that_was_closed,
        grows_over_a_lease_that_ran_out,
        a_commit_is_proved_or_the_proof_refused;
    rule_07_names:
        different_strings_are_different_locks,
        the_same_string_is_the_same_lock,
        out_of_bounds_reaches_no_store,
        namespaces_do_not_meet;
    rule_08_queue:
        first_come_first_served_by_hand_over,
        first_come_first_served_through_the_store,
        hand_overs_are_bounded_by_count,
        hand_overs_are_bounded_by_time,
        hundred_threads_are_one_waiter,
        a_fixed_lease_is_never_handed_over;
    rule_09_between_processes:
        two_keepers_take_turns,
        two_processes_take_turns,
        second_keeper_under_full_load,
        second_process_under_full_load,
        nobody_snatches_it_from_the_one_woken,
        one_that_gave_up_stalls_nobody,
        giving_up_as_it_is_released,
        a_killed_waiter_stalls_nobody,
        a_stopped_waiter_stalls_nobody;
    rule_10_resources:
        nothing_stays_in_the_store,
        ten_thousand_locks_cost_nothing;
    rule_11_cancel:
        in_line,
        in_the_store,
        before_it_began,
        as_it_is_released;
    rule_12_not_reentrant:
        the_same_thread_waits_like_any_other;
    rule_13_nothing_silent:
        requiring_what_is_missing,
        settings_out_of_bounds;
    admin:
        tells_who_holds,
        tells_how_many_wait,
        forced_release_is_noticed_and_the_token_grows,
        forced_release_wakes_one_waiter,
        examines_itself;
};
