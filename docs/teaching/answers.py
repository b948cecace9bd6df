"""The answers of the three lessons, for teachers; and for each, mistakes that its check must refuse.

Lesson → name that the exercise assigns → (answer, mistakes), each an expression of Python.  Tests run all of them.
"""

ANSWERS = {
    "one_head": {
        "my_v": ("[-10, 40, -20]", ["[-10, -40, 20]", "[-10, 20, -10]", "[-1, 4, -2]", "[10, -40, 20]"]),
        "alpha_and_shift": ("(3, (1, -2))", ["(3, (-1, 2))", "(-3, (1, -2))", "(3, (6, -12))", "(3, (2, -4))"]),
        "alpha_for_a_millionth": ("15.3", ["13.8", "15.1", "16", "104"]),
        "alpha_between": ("208", ["104", "207", "209", "416"]),
    },
    "one_kernel": {
        "dilated_shifts": ("[-4, -2, 0, 2, 4]", ["[-2, -1, 0, 1, 2]", "[0, 2, 4, 6, 8]", "[-4, -2, 2, 4]"]),
        "tokens_and_queries": ("(100, 16)", ["(64, 16)", "(100, 64)", "(100, 25)", "(16, 100)"]),
        "step_and_verdict": (
            '("leakage", "UNDECIDED")',
            ['("target", "UNDECIDED")', '("leakage", "REFUTED")', '("leakage", "PROVED")', '("taps", "UNDECIDED")'],
        ),
        "hidden_fault": ("2**-23", ["0.0", "2**-25", "0.001", "1.0"]),
    },
    "one_network": {
        "true_or_false": (
            "[True, False, False, True, False]",
            ["[True, True, False, True, False]", "[True] * 5", "[True, False, False, False, False]", "[True, False]"],
        ),
        "forge": (
            'lambda d: d["layers"][0]["bound"].__setitem__(0, (2.0**-30).hex())',
            [
                "lambda d: None",
                'lambda d: d["layers"][0]["bound"].__setitem__(0, (2.0**-10).hex())',
                'lambda d: d["layers"][0].update(input_bound=(2.0).hex())',
            ],
        ),
        "numbers": (
            "lambda n: 9 * n**2 * (n + 2) ** 2",
            ["lambda n: 9 * n**4", "lambda n: n**2 * (n + 2) ** 2", "lambda n: 9 * n**2"],
        ),
    },
}
