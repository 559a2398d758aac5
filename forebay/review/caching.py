"""Do we cache predictable requests?"""

from forebay.review.finding import Answer, Case, Document, Finding, last, rounded, share
from forebay.review.samples import Histogram

# Nothing is said about fewer lookups, comparisons, or repeated misses than these.
LOOKUPS, COMPARED, REPEATED = 40, 20, 20
# The shipped τ: what is at least so near would usually be worth asking the guard about.
NEAR, HIGH_TAU = 0.80, 0.85
FAILED_SHARE, BADLY, DISAGREE_SHARE, REPEATED_SHARE = 0.02, 0.1, 0.3, 0.1
LOST_SHARE, LOST_OF_NEAR = 0.05, 0.4
TOP = 10


def ask_cache(case: Case) -> Answer:
    """Hit rates, what stands in their way, and what is asked again and again."""
    now = case.now
    requests = now.increase("forebay_requests_total", ("cache",), lambda **one: one.get("status", "").startswith("2"))
    exact, semantic = requests.get(("hit-exact",), 0.0), requests.get(("hit-semantic",), 0.0)
    missed = requests.get(("miss",), 0.0)
    looked = exact + semantic + missed
    similarity = now.histogram("forebay_cache_similarity")
    lookups = now.increase("forebay_cache_lookups_total", ("layer", "result"))
    answer = Answer(
        {
            "requests": rounded(sum(requests.values()), 1),
            "looked_up": rounded(looked, 1),
            "hit_rate": rounded(share(exact + semantic, looked)),
            "hit_rate_exact": rounded(share(exact, looked)),
            "hit_rate_semantic": rounded(share(semantic, looked)),
            "bypassed": rounded(share(requests.get(("bypass",), 0.0), sum(requests.values()))),
            "threshold": _threshold(case),
            "similarity": {"p50": rounded(similarity.quantile(0.5)), "p90": rounded(similarity.quantile(0.9))},
            "lookups": {f"{layer} {result}": rounded(count, 1) for (layer, result), count in sorted(lookups.items())},
            "not_kept": _by(case, "forebay_cache_writes_skipped_total", "reason"),
            "saved_tokens": _by(case, "forebay_saved_tokens_total", "source"),
            "saved_cost": _by(case, "forebay_saved_cost_total", "source"),
        }
    )
    results = {result: count for (layer, result), count in lookups.items() if layer == "semantic"}
    _failures(answer, lookups)
    _threshold_too_high(answer, case, results, similarity)
    _disagreement(answer, case)
    _not_kept(answer, case, missed)
    _repeats(answer, case)
    return answer


def _by(case: Case, name: str, label: str) -> Document:
    return {key[0]: rounded(value, 2) for key, value in sorted(case.now.increase(name, (label,)).items())}


def _threshold(case: Case) -> float | None:
    found = last(case.now, "forebay_cache_threshold")
    if found is not None:
        return found
    return None if case.config is None else case.config.cache.semantic.threshold


def _failures(answer: Answer, lookups: dict[tuple[str, ...], float]) -> None:
    failed = sum(count for (_, result), count in lookups.items() if result in ("timeout", "error"))
    asked = sum(count for (_, result), count in lookups.items() if result != "bypass")
    if asked >= LOOKUPS and failed / asked >= FAILED_SHARE:
        answer.findings.append(
            Finding(
                "cache_lookups_fail",
                "problem" if failed / asked >= BADLY else "note",
                f"{failed / asked:.1%} of cache lookups run out of time or fail",
                {"failed": rounded(failed, 1), "asked": rounded(asked, 1)},
                "Look at the store's latency and breaker, and at the embedder's: these are misses for nothing.",
            )
        )


def _threshold_too_high(answer: Answer, case: Case, results: dict[str, float], similarity: Histogram) -> None:
    """Questions that were near, and neither served nor put to the guard: only τ stood between."""
    asked = sum(results.get(name, 0.0) for name in ("hit", "miss", "guarded"))
    served, guarded = results.get("hit", 0.0), results.get("guarded", 0.0)
    near = similarity.count - similarity.upto(NEAR)
    lost = max(0.0, near - served - guarded)
    tau = _threshold(case)
    agreed = share(served, served + guarded)
    answer.figures["near_misses"] = {
        "near": rounded(near, 1),
        "below_threshold": rounded(lost, 1),
        "of_lookups": rounded(share(lost, asked)),
        "guard_agrees": rounded(agreed),
    }
    if asked < LOOKUPS or (tau is not None and tau < HIGH_TAU):
        return
    if lost / asked >= LOST_SHARE and lost / near >= LOST_OF_NEAR:
        more = f"up to {lost:.0f}" if agreed is None else f"about {lost * agreed:.0f}"
        known = "" if tau is None else f" ({tau:g})"
        answer.findings.append(
            Finding(
                "threshold_too_high",
                "problem",
                f"τ{known} keeps {lost:.0f} of {asked:.0f} semantic lookups from answers that are near",
                {
                    "threshold": tau,
                    "lookups": rounded(asked, 1),
                    "similarity_above_0.80": rounded(near, 1),
                    "served": rounded(served, 1),
                    "refused_by_guard": rounded(guarded, 1),
                    "lost": rounded(lost, 1),
                },
                f"Lower cache.semantic.threshold: {more} more hits in this time. The guard decides on top; "
                "forebay cache calibrate finds the lowest τ for a bound on false hits.",
            )
        )


def _disagreement(answer: Answer, case: Case) -> None:
    compared = case.now.increase("forebay_cache_shadow_total", ("agreement",))
    different, total = compared.get(("different",), 0.0), sum(compared.values())
    answer.figures["shadow"] = {"compared": rounded(total, 1), "different": rounded(share(different, total))}
    if total >= COMPARED and different / total >= DISAGREE_SHARE:
        answer.findings.append(
            Finding(
                "cached_answers_disagree",
                "problem",
                f"{different / total:.0%} of the compared semantic hits say something else than a fresh answer",
                {"compared": rounded(total, 1), "different": rounded(different, 1)},
                "Read the shadow lines of the log; purge after a change of model or facts, else raise τ.",
            )
        )


def _not_kept(answer: Answer, case: Case, missed: float) -> None:
    reasons = case.now.increase("forebay_cache_writes_skipped_total", ("reason",))
    cut = reasons.get(("length",), 0.0)
    if missed >= LOOKUPS and cut / missed >= 0.3:
        answer.findings.append(
            Finding(
                "answers_cut_off",
                "note",
                f"{cut / missed:.0%} of the misses were cut off by max_tokens, and such answers are not kept",
                {"cut_off": rounded(cut, 1), "misses": rounded(missed, 1)},
                "Clients that ask for less than an answer takes pay for it every time: raise max_tokens.",
            )
        )


def _repeats(answer: Answer, case: Case) -> None:
    repeats = case.repeats
    if repeats is None:
        answer.figures["repeated_misses"] = None
        return
    ttl = None if case.config is None else case.config.cache.exact.ttl
    rows = [
        {
            "fingerprint": asked.fingerprint,
            "requests": asked.requests,
            "missed_again": asked.missed,
            "output_tokens": asked.output_tokens,
            "seconds_between": rounded(sum(asked.gaps) / len(asked.gaps), 1) if asked.gaps else None,
            "why": asked.why.most_common(1)[0][0],
        }
        for asked in repeats.top(TOP)
    ]
    answer.figures["repeated_misses"] = rows
    answer.figures["repeated_share"] = rounded(share(repeats.repeated, repeats.misses))
    if repeats.repeated >= REPEATED and repeats.repeated / repeats.misses >= REPEATED_SHARE:
        late = [asked for asked in repeats.top(TOP) if ttl is not None and asked.gaps and min(asked.gaps) > ttl]
        expired = len(late) > len(rows) / 2
        advice = "Most come back later than cache.exact.ttl: lengthen it." if expired else "See why, per fingerprint."
        answer.findings.append(
            Finding(
                "repeats_missed",
                "problem",
                f"{repeats.repeated} of {repeats.misses} misses were to questions that had been answered before",
                {"repeated": repeats.repeated, "misses": repeats.misses, "top": rows[:3], "ttl_s": ttl},
                advice,
            )
        )
