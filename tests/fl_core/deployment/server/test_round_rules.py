from fedlm.fl_core.deployment.server.round_rules import RoundRules


def test_a_round_of_named_clients_waits_for_all_of_them_and_for_no_others():
    rules = RoundRules(10, 5, 1.3, 60.0, 60.0).for_cohort(4)
    assert (rules.goal, rules.minimum, rules.to_select) == (4, 4, 4)
