"""A lesson that is over before it began, with all that a page has to show."""

from minitransformer.course.lesson import HEADER

TINY = (
    HEADER
    + r'''# %% [markdown] question="What is a lesson?" minutes=20 after=[]
# # A tiny lesson
#
# A state $S_i$, $\{x_i\}$ and a [warp](glossary.md#warp); code stays: `a[i](b)` and `$x$`.
#
# $$S_i = S_{i-1} + k_i v_i^T \tag{1}$$
#
# A formula of two lines, wider than any phone:
#
# $$
# \begin{aligned}
# o_i &= \frac{\sum_{j \le i} \varphi(Q_i) \cdot \varphi(K_j)\, v_j}
#   {\sum_{j \le i} \varphi(Q_i) \cdot \varphi(K_j)} + \text{and so on, and on and on, and on} \\
#     &= S_i^T q_i / (q_i \cdot Z_i)
# \end{aligned} \tag{2}
# $$

# %% tags=["hide-input"]
import sys

from matplotlib.figure import Figure

from minitransformer.course import guess, quote, show

# %%
guess("factor", 8)
print("to", "nobody", file=sys.stderr)
print("abracadabra")
figure = Figure(figsize=(9, 3.6), layout="constrained")
figure.subplots().plot([1, 4, 9])
show(figure, "squares", alt="A curve through 1, 4 and 9.")
show(quote(guess))

# %% [markdown] exercise="doubled"
# ## Exercise: double (2 points, 5 minutes)
#
# Read [lesson 9](09_missing.py) before.
#
# <details><summary>Hint 1 of 3</summary>
#
# Add $x$ to $x$.
#
# </details>

# %% exercise="doubled"
def double(x):
    """Return twice x."""
    # BEGIN SOLUTION
    return 2 * x
    # END SOLUTION

# %%
double(2)
'''
)
GLOSSARY = "# Glossary\n\n## Warp\n\nThirty-two threads; see [it](03_tiny.py).\n"


def write(folder):
    """Put it into a folder as lesson 3, with a glossary and a README beside it."""
    (folder / "03_tiny.py").write_text(TINY)
    (folder / "glossary.md").write_text(GLOSSARY)
    (folder / "README.md").write_text("A\n<!-- lessons -->\nold\n<!-- end of lessons -->\nZ\n")
    return folder / "03_tiny.py"
