"""Numbers of the papers, and proof by simulation that tests and intervals keep what they say."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from posbench import stats
from posbench.ranks import against_control, critical_difference, friedman, rank_rows

# Demsar (2006), table 6: AUC of C4.5, +m, +cf and +m+cf on 14 data sets. The one printed tie is ranked there as untied.
DEMSAR = np.array([float(score) for score in """
    .763 .768 .771 .798 .599 .591 .590 .569 .954 .971 .968 .967 .628 .661 .654 .657 .882 .888 .886 .898
    .936 .931 .916 .931 .661 .668 .609 .685 .583 .583 .563 .625 .775 .838 .866 .875 1 1 1 1
    .940 .962 .965 .962 .619 .666 .614 .669 .972 .981 .9751 .975 .957 .978 .946 .970""".split()]).reshape(14, 4)


def close(value, decimals):
    return pytest.approx(value, abs=0.5 * 10**-decimals)


class TestEstimates:
    def test_deviation_is_that_of_a_sample(self):
        estimate = stats.t_interval([80.1, 81.3, 79.8])
        assert (estimate.sd, estimate.error, estimate.n) == (close(0.794, 3), close(0.458, 3), 3)
        assert estimate.high - estimate.mean == pytest.approx(4.302653 * estimate.error, rel=1e-5)  # t(2), 97.5 %

    def test_one_value_has_no_interval(self):
        estimate = stats.t_interval([80.1])
        assert estimate.mean == 80.1 and math.isnan(estimate.half_width) and math.isnan(estimate.sd)

    @pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
    def test_a_run_without_a_score_is_never_left_out_in_silence(self, values):
        with pytest.raises(ValueError):
            stats.t_interval(values)

    def test_difference_is_paired_and_signed(self):
        estimate = stats.paired_difference(treatment=[1.0, 12.0, 103.0], baseline=[0.0, 10.0, 100.0])
        assert estimate.mean == 2.0 and estimate.sd == 1.0
        with pytest.raises(ValueError, match="equally many"):
            stats.paired_difference(treatment=[1.0], baseline=[1.0, 2.0])

    @pytest.mark.parametrize("n", [3, 5])
    def test_interval_covers_at_the_seed_counts_in_use(self, n):
        samples = np.random.default_rng(n).normal(2.0, 3.0, size=(4000, n))
        covered = [estimate.low <= 2.0 <= estimate.high for estimate in map(stats.t_interval, samples)]
        assert 0.93 <= np.mean(covered) <= 0.97


class TestSignFlip:
    @pytest.mark.parametrize("n", [1, 2, 5, 8])
    def test_smallest_p_is_two_in_two_to_the_n(self, n):
        assert stats.sign_flip_p(np.arange(1.0, n + 1)) == pytest.approx(2 / 2**n)

    def test_equals_the_enumeration(self):
        differences = np.array([0.3, -0.1, 0.7, 0.2, -0.4, 0.1])
        signs = np.array(np.meshgrid(*[[-1, 1]] * 6)).reshape(6, -1)
        totals = np.abs(signs.T @ differences)
        assert stats.sign_flip_p(differences) == np.mean(totals >= abs(differences.sum()) - 1e-12)

    @pytest.mark.parametrize("differences", [[0.0] * 3, [0.0] * 20, [0.1, 0.2, -0.3],
                                              [-0.2, -0.1, -0.1, -0.2, 0.4, 0.2]])
    def test_no_difference_gives_one_and_no_crash(self, differences):
        assert stats.sign_flip_p(differences) == 1.0

    def test_unit_and_direction_do_not_matter(self):
        differences = np.random.default_rng(0).normal(size=9)
        assert stats.sign_flip_p(differences) == stats.sign_flip_p(-1e-9 * differences)

    def test_many_pairs_count_the_observed_assignment(self):
        assert stats.sign_flip_p(np.ones(40), draws=999) == pytest.approx(2 / 1000)

    def test_draws_are_reproducible_from_their_seed_and_the_seed_has_an_effect(self):
        differences = np.random.default_rng(1).normal(0.3, 1, size=20)
        first, again, other = (stats.sign_flip_p(differences, draws=500, seed=seed) for seed in (0, 0, 1))
        assert first == again != other

    def test_finds_an_effect_of_one_deviation_as_often_as_theory_says(self):
        samples = np.random.default_rng(2).normal(1.0, 1.0, size=(600, 10))
        found = np.mean([stats.sign_flip_p(sample) <= 0.05 for sample in samples])
        assert found == pytest.approx(TTestPower().power(1.0, 10, 0.05), abs=0.05)


class TestFamilies:
    def test_holm_comes_back_in_the_order_given(self):
        assert stats.holm([0.20, 0.001, 0.04]) == pytest.approx([0.20, 0.003, 0.08])

    @pytest.mark.parametrize("size", [1, 2, 7])
    def test_holm_equals_statsmodels(self, size):
        p_values = np.random.default_rng(size).uniform(0, 0.3, size=size).round(2)
        assert stats.holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])

    def test_a_comparison_that_failed_stays_in_the_family(self):
        adjusted = stats.holm([0.01, math.nan, 0.02])
        assert adjusted[0] == pytest.approx(0.03) and math.isnan(adjusted[1]) and adjusted[2] == pytest.approx(0.04)
        assert stats.holm([]) == []

    @pytest.mark.parametrize(("comparisons", "alpha", "seeds"), [(1, 0.05, 6), (5, 0.05, 8), (1, 0.0625, 5)])
    def test_seeds_needed(self, comparisons, alpha, seeds):
        assert stats.seeds_needed(comparisons=comparisons, alpha=alpha) == seeds
        assert 2 / 2**seeds * comparisons <= alpha < 2 / 2 ** (seeds - 1) * comparisons

    @pytest.mark.parametrize("n", [3, 5, 10])
    def test_detectable_difference_is_that_of_the_paired_t_test(self, n):
        expected = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)
        assert stats.detectable_difference(sd=2.0, n=n, alpha=0.05) == pytest.approx(2 * expected, rel=1e-4)

    def test_detectable_difference_at_its_limits(self):
        assert stats.detectable_difference(sd=1.0, n=1, alpha=0.05) == math.inf
        assert stats.detectable_difference(sd=0.0, n=3, alpha=0.05) == 0.0
        assert 50 < stats.detectable_difference(sd=1.0, n=2, alpha=0.05 / 7) < 200


class TestSummaries:
    def test_probability_of_improvement_counts_ties_one_half(self):
        assert stats.probability_of_improvement(treatment=(3, 5, 7), baseline=(2, 5, 6)) == close(0.6111, 4)
        assert stats.probability_of_improvement(treatment=(1, 1), baseline=(1, 1)) == 0.5

    def test_interquartile_mean(self):
        assert stats.interquartile_mean(range(8)) == 3.5
        assert stats.interquartile_mean([0, 1, 2, 3, 4, 5, 6, 700]) == 3.5

    def test_expected_best(self):
        assert stats.expected_best([5, 1, 3, 2, 4], n=2) == pytest.approx(4.0)
        assert stats.expected_best(range(1, 6), n=2, biased=True) == pytest.approx(3.8)
        assert stats.expected_best(range(1, 6), n=5) == 5 and stats.expected_best(range(1, 6), n=1) == 3
        assert stats.expected_best(range(1, 6), n=2, higher_is_better=False) == pytest.approx(2.0)

    @pytest.mark.parametrize("n", [0, 6])
    def test_best_of_more_trials_than_were_run_is_refused(self, n):
        with pytest.raises(ValueError, match="from 5"):
            stats.expected_best(range(1, 6), n=n)


class TestRanks:
    def test_demsar_example(self):
        ranks = rank_rows(DEMSAR)
        average = ranks.mean(axis=0)
        assert average == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
        test = friedman(ranks)
        assert (test.chi2, test.f) == (close(9.28, 2), close(3.69, 2)) and "untied" in test.form
        control = against_control(average, control=0, n=14)
        assert np.abs(control.z[1:]) == pytest.approx([2.342, 0.512, 2.415], abs=5e-4)
        assert control.p_holm[1:] == pytest.approx([0.047, 0.608, 0.047], abs=5e-4)
        assert math.isnan(control.z[0]) and math.isnan(control.p_holm[0])

    def test_without_ties_the_statistic_is_scipys(self):
        scores = np.random.default_rng(0).normal(size=(9, 5))
        expected = scipy_stats.friedmanchisquare(*scores.T)
        test = friedman(rank_rows(scores))
        assert (test.chi2, test.chi2_p) == pytest.approx((expected.statistic, expected.pvalue))

    @pytest.mark.parametrize(("alpha", "distance"), [(0.05, 1.25), (0.10, 1.12)])
    def test_critical_difference(self, alpha, distance):
        assert critical_difference(k=4, n=14, alpha=alpha) == close(distance, 2)

    def test_ties_are_averaged_and_a_cell_without_a_score_is_last(self):
        assert rank_rows(np.array([[0.5, 0.9, 0.5, math.nan]])).tolist() == [[2.5, 1, 2.5, 4]]
        assert rank_rows(np.array([[0.5, math.nan, 0.9]]), higher_is_better=False).tolist() == [[1, 3, 2]]
        assert rank_rows(np.array([[1.0, 2.0]] * 2), higher_is_better=[True, False]).tolist() == [[2, 1], [1, 2]]

    def test_two_tasks_that_agree_prove_nothing(self):
        test = friedman(np.array([[1.0, 2.0], [1.0, 2.0]]))
        assert test.f_p == 0 and test.p == 0.5

    def test_same_encoding_under_several_names_is_seldom_significant(self):
        generator, k, n, studies = np.random.default_rng(3), 3, 4, 1000
        found, distance = {"friedman": 0, "nemenyi": 0, "control": 0}, critical_difference(k=k, n=n, alpha=0.05)
        for _ in range(studies):
            ranks = rank_rows(generator.normal(size=(n, k)))
            average = ranks.mean(axis=0)
            found["friedman"] += friedman(ranks).p <= 0.05
            found["nemenyi"] += np.ptp(average) >= distance
            found["control"] += min(against_control(average, control=0, n=n).p_holm[1:]) <= 0.05
        assert all(count / studies <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies) for count in found.values()), found
