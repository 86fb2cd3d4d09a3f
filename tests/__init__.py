"""All tests. Assertions in what they share tell both sides, as those in tests do."""

import sys

if "pytest" in sys.modules:  # not in the processes that tests start
    sys.modules["pytest"].register_assert_rewrite("tests.support")
