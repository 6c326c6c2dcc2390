"""Looking for wrong code: random graphs in worker processes, compared in several ways, and what fails made small.

* `campaign`: the loop, its workers' findings and its report; `coverage`: what was tried and what never.
* `examine`: the comparisons; `worker`, `crew`: they run in processes that may crash, hang or fill the memory.
* `reduce`: the smallest graph and inputs that still fail; `findings`: which failures are one, and their capsules.
* `workarounds`: what can be switched off, by name.
"""
